// The text that a summation service leaves of its times, which `treadle plan --explain` reads.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/times.h"

namespace treadle::fuzz::summation_times_fuzz {
namespace {

void feed(Bytes input) {
  const Result<SummationTimes> times =
      summation::parseTimes({reinterpret_cast<const char*>(input.data()), input.size()});
  if (!times.ok())
    return promise(times.status().code() == Code::kInvalidArgument, "what is none is refused in one way");
  promise(!times->workers.empty() && times->underWay() >= Duration::zero(), "times are of a worker, and not negative");
  SummationTimes once = *summation::parseTimes(summation::textOf(*times));
  promise(summation::textOf(once) == summation::textOf(*times), "times that are read are written as they are");
}

Inputs seeds() {
  Inputs all;
  for (const char* worker : {"w0", "a worker"}) {
    const SummationTimes times{.service = "gradients",
                               .number = 7,
                               .worker = worker,
                               .workers = {worker, "w1"},
                               .servers = {"s2"},
                               .sums = 3,
                               .bytes = 4,
                               .waiting = Duration(5)};
    const std::string text = summation::textOf(times);
    for (const std::string& one : {text, text.substr(0, text.size() / 2), "x" + text}) all.push_back(bytesOf(one));
  }
  return all;
}

const Fuzzer kSummationTimes("summation_times", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_times_fuzz
