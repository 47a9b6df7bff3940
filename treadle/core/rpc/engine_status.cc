// What an engine has under way, for metrics and for messages to people.

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {
namespace {

constexpr size_t kNamed = 5;

// "2 answers ('f' of 'a', 'g' of 'b')"; of many the first are named. Empty for none.
std::string listed(const std::string& verb, const char* what, const std::vector<std::string>& items) {
  if (items.empty()) return {};
  std::string text = verb + " " + std::to_string(items.size()) + " " + what + (items.size() == 1 ? " (" : "s (");
  for (size_t i = 0; i < std::min(items.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + items[i];
  return text + (items.size() > kNamed ? ", ...)" : ")");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

CallCounts Engine::counts() const {
  CallCounts counts;
  peers_.forEach([&](const PeerCalls& peer) {
    counts.unansweredBytes += peer.toPeer.takenBytes();
    counts.bytesToAnswer += peer.fromPeer.takenBytes();
  });
  MutexLock lock(mutex_);
  counts.sent = sent_;
  counts.handled = handled_;
  counts.sentToLiving = sent_ - sentToLost_;
  counts.handledOfLiving = handled_ - handledOfLost_;
  counts.pending = pending_.size() - givenUp_;
  counts.running = incoming_.size();
  counts.deadlineLooks = deadlineLooks_;
  return counts;
}

std::string Engine::whatIsLeft() const {
  auto nameOf = [this](int rank) { return "'" + membership_.info(rank).name + "'"; };
  std::vector<std::string> answers, handlers, holders;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, call] : pending_)
      if (call.complete) answers.push_back("'" + call.function + "' of " + nameOf(call.rank));
    for (const auto& [key, call] : incoming_) handlers.push_back("'" + call->function + "' for " + nameOf(key.first));
  }
  for (const auto& [rank, count] : references_->holders())
    if (rank != membership_.self().rank) holders.push_back(std::to_string(count) + " by " + nameOf(rank));
  std::string held = holders.empty() ? "" : "has values that are referred to elsewhere (" + joined(holders) + ")";
  return joined({listed("awaits", "answer", answers), listed("runs", "handler", handlers), held});
}

Status Engine::whetherHere() const {
  MutexLock lock(mutex_);
  return closed_.ok() ? Status() : failedPrecondition("this worker has left its job");
}

}  // namespace treadle::rpc
