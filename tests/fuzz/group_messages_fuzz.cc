// What the members of a group say to each other (group/messages.h). The first byte is how many buffers come along.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/group/messages.h"

namespace treadle::fuzz::group_messages_fuzz {
namespace {

void feed(Bytes input) {
  Choices choices(input);
  link::Message message{link::Subject::kGroup, {}, std::vector<Buffer>(choices.below(3))};
  Bytes payload = choices.rest();
  message.payload.assign(payload.begin(), payload.end());
  std::vector<std::byte> came = message.payload;
  Result<group::Message> parsed = group::parse(std::move(message));
  if (!parsed.ok()) return;
  promise(group::encode(*parsed) == came, "a message that is read is written as it came");
  promise(parsed->kind != group::MessageKind::kAbort || !parsed->status.ok(), "an abort has a reason");
  promise(parsed->sequence != group::kWholeGroup || parsed->kind == group::MessageKind::kAbort,
          "only an abort is for a whole group");
  if (parsed->kind == group::MessageKind::kStart)
    promise(!group::describe(parsed->description).empty() && group::sizeOf(parsed->description.dataType) > 0,
            "what is started can be told");
}

Inputs seeds() {
  group::Message message{.group = 7, .sequence = 1, .description = {}, .status = {}, .data = {}};
  message.description = {
      group::OperationKind::kAllReduce, group::DataType::kFloat32, group::ReduceOp::kSum, 0, 100, 0, 65'536, 262'144,
      group::Algorithm::kExchange};
  message.description.urgency = 3;
  Inputs all = {group::encode(message)};
  message.description.operation = group::OperationKind::kSparseAllReduce;
  message.description.shape = "[4, 25] with 1 sparse dimension";
  all.push_back(group::encode(message));
  for (auto kind : {group::MessageKind::kChunk, group::MessageKind::kAck, group::MessageKind::kAbort,
                    group::MessageKind::kResult, group::MessageKind::kShare}) {
    message.kind = kind;
    message.status = peerLost("w1", "it died");
    all.push_back(group::encode(message));
  }
  message.sequence = group::kWholeGroup;
  all.push_back(group::encode(message));
  for (auto& one : all) one.insert(one.begin(), std::byte{1});
  return all;
}

const Fuzzer kGroupMessages("group_messages", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::group_messages_fuzz
