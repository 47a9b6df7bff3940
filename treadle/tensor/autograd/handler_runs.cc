#include "treadle/tensor/autograd/handler_runs.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <utility>

namespace treadle::autograd {

uint64_t HandlerRuns::begin(HandlerRun run) {
  std::lock_guard lock(mutex_);
  runs_.emplace_hint(runs_.end(), next_, std::move(run));
  if (runs_.size() > kKept) runs_.erase(runs_.begin());
  return next_++;
}

void HandlerRuns::end(uint64_t number, uint64_t end) {
  std::lock_guard lock(mutex_);
  const auto found = runs_.find(number);
  if (found == runs_.end()) return;
  found->second.end = end;
  if (found->second.begin == end) runs_.erase(found);
}

std::optional<HandlerRun> HandlerRuns::of(const Node& node) const {
  std::lock_guard lock(mutex_);
  for (const auto& [number, run] : runs_)
    if (run.thread == node.thread_id() && run.begin <= node.sequence_nr() && node.sequence_nr() < run.end) return run;
  return std::nullopt;
}

RecordedRun::RecordedRun(HandlerRuns& runs, std::string function, int callerRank)
    : runs_(runs),
      number_(runs.begin({.thread = at::RecordFunction::currentThreadId(),
                          .begin = at::sequence_number::peek(),
                          .function = std::move(function),
                          .callerRank = callerRank})) {}

RecordedRun::~RecordedRun() { runs_.end(number_, at::sequence_number::peek()); }

}  // namespace treadle::autograd
