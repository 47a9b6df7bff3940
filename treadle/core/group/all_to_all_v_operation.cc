// Budget: beside that of plan_operation.cc two hashes a peer, of 24 bytes each, when it begins.

#include "treadle/core/group/all_to_all_v_operation.h"

#include <array>
#include <utility>

#include "treadle/core/base/hash.h"

namespace treadle::group {
namespace {

constexpr uint64_t kAgree = 0, kDiffer = 1;  // what starts say on their way down

// 0 where nothing is sent.
uint64_t hashOfSize(int from, int to, uint64_t elements) {
  if (elements == 0) return 0;
  return base::mixed(hashOf(std::array{static_cast<uint64_t>(from), static_cast<uint64_t>(to), elements}));
}

}  // namespace

AllToAllVOperation::AllToAllVOperation(Setup setup, Plan plan)
    : PlanOperation(std::move(setup), std::move(plan)), shared_(static_cast<size_t>(link().size())) {}

uint64_t AllToAllVOperation::elementsTo(int member) const {
  if (!isInTree()) return own_;
  if (isParent(member)) return own_ + others_;
  return differs_ ? kDiffer : kAgree;
}

void AllToAllVOperation::onBegin() {
  const int self = link().self();
  for (const Channel& channel : plan().channels)
    own_ += hashOfSize(self, channel.peer, elementsOf(channel.sends)) -
            hashOfSize(channel.peer, self, elementsOf(channel.receives));
  PlanOperation::onBegin();
}

void AllToAllVOperation::onStarted(int member, uint64_t elements, Buffer data) {
  if (data.sizeBytes != 0) return violated(member, "data too early");
  if (!isInTree() || !isParent(member)) {
    others_ += elements;
  } else if (elements > kDiffer) {
    return violated(member, "a start that does not say whether the sizes agree");
  } else {
    differs_ = elements == kDiffer;
  }
  advance();
}

// No data goes to a member that has begun before this one knows that all sizes agree.
void AllToAllVOperation::advance() {
  if (ended() || !begun()) return;
  if (!agreement().agreed()) return sendStarts();
  if (!isInTree() || link().self() == 0) differs_ = own_ + others_ != 0;
  if (!differs_) return PlanOperation::advance();
  sendStarts();
  if (!ended() && !std::exchange(compared_, true)) compare();
}

void AllToAllVOperation::compare() {
  for (int peer = 0; peer < link().size() && !ended(); ++peer) {
    if (peer == link().self()) continue;
    Message share = message(MessageKind::kShare);
    share.elements = PlanOperation::elementsTo(peer);
    send(peer, std::move(share));
  }
}

// It may come before this member knows that sizes differ.
void AllToAllVOperation::onShare(int member, uint64_t elements, Buffer data) {
  const auto place = static_cast<size_t>(member);
  if (!begun() || data.sizeBytes != 0 || shared_[place]) return violated(member, "a share where none was due");
  shared_[place] = true;
  if (const uint64_t expected = elementsFrom(member); elements != expected)
    return finish(mismatch(member, elements, expected));
}

std::string AllToAllVOperation::waitsFor() const {
  return differs_ ? "some members expect other sizes than come to them, and have not said which"
                  : PlanOperation::waitsFor();
}

}  // namespace treadle::group
