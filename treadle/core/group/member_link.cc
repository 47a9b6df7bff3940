#include "treadle/core/group/member_link.h"

#include <utility>

namespace treadle::group {

MemberLink MemberLink::between(int peer, Stream stream) const {
  const bool sends = stream == Stream::kSends;
  std::vector<WorkerInfo> pair = {member(sends ? self_ : peer), member(sends ? peer : self_)};
  return MemberLink(membership_, group_, std::move(pair), sends ? 0 : 1, stream);
}

int MemberLink::memberOf(int jobRank) const {
  for (int rank = 0; rank < size(); ++rank)
    if (member(rank).rank == jobRank) return rank;
  return -1;
}

Status MemberLink::send(int rank, Message message) const {
  const Buffer data = std::exchange(message.data, {});
  return sendPayload(rank, encoded(std::move(message)), data);
}

Status MemberLink::sendToOthers(Message message) const {
  const Buffer data = std::exchange(message.data, {});
  const std::vector<std::byte> payload = encoded(std::move(message));
  Status first;
  for (int step = 1; step < size(); ++step) {
    Status sent = sendPayload((self_ + step) % size(), payload, data);
    if (first.ok()) first = std::move(sent);
  }
  return first;
}

std::vector<std::byte> MemberLink::encoded(Message message) const {
  message.group = group_;
  message.stream = message.sequence == kWholeGroup ? Stream::kAll : stream_;
  return encode(message);
}

Status MemberLink::sendPayload(int rank, Bytes payload, const Buffer& data) const {
  std::span<const Buffer> buffers(&data, data.sizeBytes > 0 ? 1 : 0);
  Status sent =
      membership_.send(member(rank).rank, link::Subject::kGroup, payload, buffers, link::SendMode::kUrgent, kNever);
  if (sent.ok() || !sent.worker().empty()) return sent;
  // What the other members are told too.
  if (sent.code() == Code::kCancelled) return peerLost(member(self_).name, nameOf(self_) + " has left the job");
  // The membership names who is lost, but a broken connection may show here before it has noticed.
  if (sent.code() != Code::kPeerLost) return sent;
  return peerLost(member(rank).name, nameOf(rank) + " cannot be reached: " + sent.message());
}

void MemberLink::lose(int rank, const Status& why) const { membership_.lose(member(rank).rank, why); }

}  // namespace treadle::group
