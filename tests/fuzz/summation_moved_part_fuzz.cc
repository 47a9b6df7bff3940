// A machine to which a part of an asynchronous service moves (summation/asynchronous_adder.h), among workers that
// report any versions, and send any data. The input has a few bytes for each step. A refused frame ends an input, as it
// ends a pump.

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/asynchronous_adder.h"

namespace treadle::fuzz::summation_moved_part_fuzz {
namespace {

using summation::Frame;
using summation::FrameKind;
using summation::Outgoing;

constexpr size_t kMostSteps = 200;
constexpr uint64_t kElements = 100;
constexpr std::array<uint64_t, 3> kStaleness = {0, 1, summation::SumMode::kAnyStaleness};

enum Step : uint8_t { kReport, kAdopt, kAnnounce, kGive, kTake, kLeave, kSteps };

class Play {
 public:
  explicit Play(Bytes input) : choices_(input) {}

  void play() {
    for (size_t step = 0; choices_.any() && step < kMostSteps && isWell_; ++step) move(choices_.below(kSteps));
  }

 private:
  static constexpr uint64_t kBytes = kElements * sizeof(uint64_t);

  void move(size_t step) {
    const size_t worker = choices_.below(workers_ + 1);  // the last one is none
    switch (step) {
      case kReport: worker == self_&& worker < workers_ ? reportOwn() : report(worker); break;
      case kAdopt: adopt(); break;
      case kAnnounce: hear(adder_.announced(worker, {FrameKind::kAnnounce, 0, 0, choices_.below(4), 0})); break;
      case kGive: give(worker); break;
      case kTake: take(worker); break;
      default:
        if (worker < workers_) adder_.left(worker);
    }
    giveOwn();
    for (const size_t part : adder_.takeDone()) promise(part == 0 && self_ < workers_, "its own part ends");
  }

  void hear(const Status& status) {
    promise(status.ok() || status.code() == Code::kDataLoss, "a frame is refused in one way");
    isWell_ = isWell_ && status.ok();
  }

  // Versions that could fit together, or any.
  summation::Version drawnVersion() {
    summation::Version version(workers_);
    const bool isAny = choices_.below(16) == 0;
    for (uint64_t& one : version) one = isAny ? choices_.number<uint64_t>() : choices_.below(3);
    return version;
  }

  void report(size_t worker) {
    summation::Version version = drawnVersion();
    const auto bytes = static_cast<uint32_t>(choices_.below(16) == 0 ? choices_.below(100) : 8 * workers_);
    const uint64_t round = worker < workers_ && choices_.below(8) > 0 ? version[worker] : choices_.below(3);
    const Frame frame{FrameKind::kVersion, bytes, choices_.below(16) == 0 ? 1u : 0u, round, 0};
    const Result<MutableBytes> room = adder_.roomFor(worker, frame);
    hear(room.status());
    if (!room.ok()) return;
    promise(worker < workers_ && !hasReported_[worker], "each worker reports once");
    promise(room->size() == summation::bytesOf(version).size(), "a version has a number for each worker");
    std::ranges::copy(summation::bytesOf(version), room->begin());
    const Status status = adder_.had(worker, frame);
    hear(status);
    hasReported_[worker] = hasReported_[worker] || status.ok();
  }

  void reportOwn() {
    if (hasReported_[self_]) return;
    hasReported_[self_] = true;
    const summation::Version version = drawnVersion();
    hear(adder_.hadOwn(0, version[self_], version));
  }

  void adopt() {
    if (declaration_.parts[0].machine == self_) return;
    declaration_.parts[0].machine = self_;
    hear(adder_.adopt(0));
  }

  void give(size_t worker) {
    const Frame frame{FrameKind::kAddend, kBytes, 0, choices_.below(4), 0};
    const Result<MutableBytes> room = adder_.roomFor(worker, frame);
    hear(room.status());
    if (!room.ok()) return;
    promise(room->size() == kBytes, "the room for a piece has its size");
    std::ranges::fill(*room, std::byte{1});
    adder_.arrived(worker, frame);
  }

  void take(size_t worker) {
    if (worker >= workers_ || worker == self_) return;
    const std::optional<size_t> next = adder_.next(worker);
    const std::optional<Outgoing> frame = adder_.take(worker);
    promise(frame.has_value() == next.has_value(), "what is next can be taken");
    if (!frame) return;
    if (frame->frame.kind == FrameKind::kRelease) checkReleased();
    adder_.written(worker, *frame);
  }

  void checkReleased() const {
    promise(std::ranges::all_of(hasReported_, [](bool one) { return one; }), "a release follows all reports");
    promise(declaration_.parts[0].machine == self_, "a machine releases what it sums");
  }

  // What its own worker does when it hears that a round is next.
  void giveOwn() {
    for (const auto& [part, round] : adder_.takeReleasedOwn()) {
      checkReleased();
      promise(part == 0 && self_ < workers_, "the part that moves");
      own_.assign(kElements, round);
      if (isWell_) adder_.announceOwn(0, std::as_writable_bytes(std::span(own_)));
    }
  }

  Choices choices_;
  const size_t workers_ = 1 + choices_.below(4);
  const size_t self_ = choices_.below(workers_ + 1);  // the last one is a server
  summation::Declaration declaration_ = {{{group::DataType::kInt64, kBytes}},
                                         {{0, 0, kBytes, workers_ + 1}},
                                         workers_,
                                         {true, kStaleness[choices_.below(kStaleness.size())]}};
  summation::AsynchronousAdder adder_{declaration_, self_};
  std::vector<bool> hasReported_ = std::vector<bool>(workers_);
  std::vector<uint64_t> own_;
  bool isWell_ = true;
};

void feed(Bytes input) { Play(input).play(); }

Inputs seeds() {
  // Workers less one, the machine, staleness. A report: whether it is any, its numbers, the size, the round, the
  // tensor.
  const auto server = row({1, 2, 2}), bounded = row({1, 2, 0}), worker = row({1, 0, 2}), alone = row({0, 0, 2});
  const auto adopt = row({kAdopt, 0});
  const auto nothing = [](int of) { return row({kReport, of, 1, 0, 0, 1, 1, 1}); };
  const auto once = [](int of) { return row({kReport, of, 1, of == 0 ? 1 : 0, of, 1, 1, 1}); };
  const auto goOn = row({kTake, 0, kTake, 1, kAnnounce, 0, 0, kTake, 0, kGive, 0, 0, kTake, 0, kTake, 0, kTake, 1});
  const auto other = row({kAnnounce, 1, 0, kTake, 1, kGive, 1, 0, kTake, 1, kTake, 1, kTake, 1});
  return {joined({server, adopt, nothing(0), nothing(1), goOn, other}),
          joined({server, once(0), nothing(1), adopt, goOn, other}),
          joined({bounded, once(0), adopt, nothing(1), goOn, row({kLeave, 1}), goOn}),
          joined({worker, adopt, nothing(1), row({kReport, 0, 1, 1, 0}), other, other}),
          joined({alone, adopt, row({kReport, 0, 1, 2})}),
          joined({server, adopt, row({kReport, 0, 1, 2, 2, 1, 1, 1}), row({kReport, 1, 1, 0, 0, 1, 1, 1})}),
          joined({server, row({kReport, 0, 0}), adopt}),
          joined({server, row({kReport, 2, 1, 0, 0, 1, 1, 1})})};
}

const Fuzzer kSummationMovedPart("summation_moved_part", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_moved_part_fuzz
