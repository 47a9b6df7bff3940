// One machine of an asynchronous summation service (summation/asynchronous_adder.h) among workers that send what they
// may, or any frame. The input has a few bytes for each step: what happens, and of which worker and part.
//
// A model of each worker says which frames may come. A refused frame ends an input, as it ends a pump; at the end of
// any other one all answers must be there that need not wait.

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/asynchronous_adder.h"

namespace treadle::fuzz::summation_asynchronous_fuzz {
namespace {

using summation::Frame;
using summation::FrameKind;
using summation::kPieceBytes;
using summation::Outgoing;

constexpr size_t kMostSteps = 200;                                   // fewer than a digit counts to
constexpr std::array<uint64_t, 4> kElements = {1, 100, 4096, 4097};  // of a part; a piece has 4096
constexpr std::array<uint64_t, 4> kStaleness = {0, 1, 3, summation::SumMode::kAnyStaleness};
constexpr std::array<uint64_t, 3> kGrantBytes = {1, 8 << 10, 256 << 10};
constexpr std::array kKinds = {FrameKind::kAnnounce, FrameKind::kAddend, FrameKind::kHave, FrameKind::kVersion};

enum Step : uint8_t { kSend, kSendAny, kTake, kWrite, kOwn, kLeave, kAllMove, kSteps };

// A worker gives its digit in each element, so an answer says how often it contains what each worker has given.
constexpr int kBitsOfDigit = 8;
uint64_t digitOf(size_t worker) { return uint64_t{1} << (kBitsOfDigit * worker); }
uint64_t timesOf(uint64_t answer, size_t worker) { return answer >> (kBitsOfDigit * worker) & 0xff; }

// A worker and a part: how far it is.
struct Progress {
  uint64_t given = 0;  // all pieces of it are there, so many times
  bool isAnnounced = false, isGranted = false;
  uint64_t sent = 0, got = 0;                 // pieces
  bool hasVersion = false;                    // of the answer that comes
  std::vector<uint64_t> seen = {0, 0, 0, 0};  // by worker: in its answers
  std::array<uint64_t, 4> version = {};       // likewise, as the frame before the answer says
};

class Play {
 public:
  explicit Play(Bytes input) : choices_(input) {
    if (self_ < workers_) own_.resize(parts());
  }

  void play() {
    for (size_t step = 0; choices_.any() && step < kMostSteps && !isOver_; ++step) move(choices_.below(kSteps));
    while (!isOver_ && allMove()) {}
    for (size_t worker = 0; worker < workers_ && !isOver_; ++worker)
      for (size_t part = 0; part < parts(); ++part)
        promise(!isUnderWay(worker, part) || mustWait(worker, part), "what has begun ends, or waits for others");
  }

 private:
  size_t parts() const { return declaration_.parts.size(); }
  bool isUnderWay(size_t worker, size_t part) const { return progress_[part][worker].isAnnounced; }
  bool hasGivenAll(const Progress& so, size_t part) const { return so.sent == declaration_.piecesOf(part); }
  uint64_t offsetOf(size_t part, uint64_t piece) const { return declaration_.beginOf(part, piece); }

  bool mustWait(size_t worker, size_t part) const {
    const auto& all = progress_[part];
    if (all[0].given == 0) return true;
    for (size_t other = 0; other < workers_; ++other)
      if (!hasLeft_[other] && all[worker].given > all[other].given &&
          all[worker].given - all[other].given > declaration_.mode.staleness)
        return true;
    return false;
  }

  void move(size_t step) {
    const size_t worker = choices_.below(workers_), part = choices_.below(parts());
    switch (step) {
      case kSend: send(worker, part); break;
      case kSendAny: sendAny(worker, part); break;
      case kTake: take(worker); break;
      case kWrite: write(worker); break;
      case kOwn: giveOwn(part); break;
      case kLeave: leave(worker); break;
      default: allMove();
    }
    checkOwn();
  }

  // The frame that the worker may send next about the part.
  std::optional<Frame> dueFrom(size_t worker, size_t part) const {
    const Progress& so = progress_[part][worker];
    const auto tensor = static_cast<uint32_t>(declaration_.parts[part].tensor);
    const uint64_t round = so.given;
    if (hasLeft_[worker]) return {};
    if (!so.isAnnounced) return Frame{FrameKind::kAnnounce, 0, tensor, round, offsetOf(part, 0)};
    if (!so.isGranted || hasGivenAll(so, part)) return {};
    return Frame{FrameKind::kAddend, static_cast<uint32_t>(declaration_.bytesOf(part, so.sent)), tensor, round,
                 offsetOf(part, so.sent)};
  }

  bool send(size_t worker, size_t part) {
    if (worker == self_) return false;
    const std::optional<Frame> frame = dueFrom(worker, part);
    if (frame) promise(give(worker, part, *frame), "what a worker may send is taken");
    return frame.has_value();
  }

  // Any frame, or one that is due but for one field.
  void sendAny(size_t worker, size_t part) {
    const std::optional<Frame> due = worker == self_ ? std::nullopt : dueFrom(worker, part);
    Frame frame = due.value_or(Frame{kKinds[choices_.below(kKinds.size())]});
    switch (choices_.below(6)) {
      case 0: frame.kind = kKinds[choices_.below(kKinds.size())]; break;
      case 1: frame.tensor = choices_.number<uint32_t>(); break;
      case 2: frame.round = choices_.number<uint64_t>(); break;
      case 3: frame.offset = choices_.number<uint64_t>(); break;
      case 4: frame.sizeBytes = choices_.number<uint32_t>() % (summation::kMostPieceBytes + 1); break;
      default: break;
    }
    const size_t from = choices_.below(8) == 0 ? workers_ + choices_.below(200) : worker;
    // As it would be parsed.
    const bool hasPiece = frame.kind == FrameKind::kAddend || frame.kind == FrameKind::kVersion;
    if (hasPiece != (frame.sizeBytes > 0)) return;
    std::optional<size_t> which;
    for (size_t one = 0; from < workers_ && from != self_ && one < parts(); ++one)
      if (dueFrom(from, one) == frame) which = one;
    const bool isTaken = give(from, which.value_or(0), frame);
    promise(isTaken || !which, "what a worker may send is taken");
    if (!isTaken || which) return;
    promise(frame.kind == FrameKind::kAddend, "only what may come is taken");
    isOver_ = true;  // the worker has guessed that it has a grant, which harms nobody; the model does not know of it
  }

  // Whether the machine takes it.
  bool give(size_t worker, size_t part, const Frame& frame) {
    Status taken;
    if (frame.kind == FrameKind::kAnnounce) taken = adder_.announced(worker, frame);
    if (frame.kind == FrameKind::kHave) taken = adder_.had(worker, frame);
    if (frame.kind == FrameKind::kVersion) taken = adder_.roomFor(worker, frame).status();
    promise(frame.kind != FrameKind::kVersion || !taken.ok(), "no part moves");
    if (frame.kind == FrameKind::kAddend) {
      const Result<MutableBytes> room = adder_.roomFor(worker, frame);
      taken = room.status();
      if (room.ok()) {
        promise(room->size() == frame.sizeBytes, "the room for a piece has its size");
        fill(*room, digitOf(worker));
        adder_.arrived(worker, frame);
      }
    }
    promise(taken.ok() || taken.code() == Code::kDataLoss, "a frame is refused in one way");
    isOver_ = isOver_ || !taken.ok();
    if (!taken.ok()) return false;
    Progress& so = progress_[part][worker];
    if (frame.kind == FrameKind::kAnnounce) so.isAnnounced = true;
    if (frame.kind == FrameKind::kAddend && ++so.sent == declaration_.piecesOf(part)) ++so.given;
    return true;
  }

  static void fill(MutableBytes bytes, uint64_t number) {
    for (size_t at = 0; at < bytes.size(); at += sizeof number)
      std::memcpy(bytes.data() + at, &number, std::min(sizeof number, bytes.size() - at));
  }
  static uint64_t numberIn(Bytes bytes) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    for (size_t at = 0; at < bytes.size(); at += sizeof number)
      promise(std::memcmp(bytes.data(), bytes.data() + at, sizeof number) == 0, "a part has whole data of workers");
    return number;
  }

  bool take(size_t worker) {
    if (worker == self_ || writing_[worker]) return false;
    const std::optional<size_t> next = adder_.next(worker);
    std::optional<Outgoing> frame = adder_.take(worker);
    promise(frame.has_value() == next.has_value(), "what is next can be taken");
    if (!frame) return false;
    Progress& so = progress_[frame->part][worker];
    if (frame->frame.kind == FrameKind::kGrant) {
      promise(so.isAnnounced && !so.isGranted && frame->frame.round == so.given, "a grant is of what was announced");
      so.isGranted = true;
      checkGranted(worker);
    } else if (frame->frame.kind == FrameKind::kVersion) {
      promise(self_ == workers_ && !so.hasVersion && so.got == 0 && frame->frame.round + 1 == so.given,
              "a server sends the version of an answer first");
      so.hasVersion = true;
      checkVersion(worker, frame->part, frame->piece);
    } else {
      promise(so.hasVersion == (self_ == workers_), "an answer has a version where a machine may be lost");
      promise(frame->frame.kind == FrameKind::kSum && hasGivenAll(so, frame->part), "an answer to what was given");
      promise(frame->frame.round + 1 == so.given && frame->frame.offset == offsetOf(frame->part, so.got),
              "the next piece of the answer");
      check(worker, frame->part, numberIn(frame->piece), so.got == 0);
      ++so.got;
    }
    writing_[worker] = frame;
    atTake_[worker].assign(frame->piece.begin(), frame->piece.end());
    return true;
  }

  // The pieces of the answer are compared with what is seen here.
  void checkVersion(size_t worker, size_t part, Bytes piece) {
    promise(piece.size() == workers_ * sizeof(uint64_t), "a version has a number for each worker");
    for (size_t other = 0; other < workers_; ++other) {
      std::memcpy(&progress_[part][worker].version[other], piece.data() + other * sizeof(uint64_t), sizeof(uint64_t));
    }
  }

  // What an answer contains.
  void check(size_t worker, size_t part, uint64_t answer, bool isFirstPiece) {
    Progress& so = progress_[part][worker];
    promise(timesOf(answer, worker) == so.given, "an answer has its worker's own data, each once");
    promise(timesOf(answer, 0) >= 1, "all begin with the first worker's values");
    for (size_t other = 0; other < workers_; ++other) {
      const uint64_t times = timesOf(answer, other);
      promise(times <= progress_[part][other].given, "nothing is in an answer that nobody gave");
      promise(!so.hasVersion || times == so.version[other], "an answer contains what its version says");
      promise(isFirstPiece ? times >= so.seen[other] : times == so.seen[other], "nothing is lost or comes in between");
      promise(hasLeft_[other] || so.given <= times || so.given - times <= declaration_.mode.staleness,
              "no answer is too stale");
      so.seen[other] = times;
    }
  }

  void checkGranted(size_t worker) const {
    uint64_t bytes = 0;
    int count = 0;
    for (size_t part = 0; part < parts(); ++part) {
      const Progress& so = progress_[part][worker];
      if (!so.isGranted || (hasGivenAll(so, part) && so.got == 0)) continue;  // its answer may wait
      bytes += summation::PartMemory::sizeFor(declaration_.parts[part].bytes());
      ++count;
    }
    promise(bytes <= grantBytes_ || count == 1, "grants keep the limit, or one is alone");
  }

  bool write(size_t worker) {
    const std::optional<Outgoing> frame = std::exchange(writing_[worker], {});
    if (!frame) return false;
    promise(std::ranges::equal(frame->piece, atTake_[worker]), "a piece stays as it is until it is written");
    adder_.written(worker, *frame);
    Progress& so = progress_[frame->part][worker];
    if (frame->frame.kind == FrameKind::kSum && so.got == declaration_.piecesOf(frame->part)) {
      so.isAnnounced = so.isGranted = false;
      so.sent = so.got = 0;
      so.hasVersion = false;
    }
    return true;
  }

  void giveOwn(size_t part) {
    if (self_ >= workers_ || hasLeft_[self_] || isUnderWay(self_, part)) return;
    own_[part].assign(declaration_.parts[part].bytes() / sizeof(uint64_t), digitOf(self_));
    progress_[part][self_].isAnnounced = true;
    ++progress_[part][self_].given;
    adder_.announceOwn(part, std::as_writable_bytes(std::span(own_[part])));
  }
  void checkOwn() {
    for (const size_t part : adder_.takeDone()) {
      promise(self_ < workers_ && part < parts() && isUnderWay(self_, part), "only what has begun ends");
      check(self_, part, numberIn(std::as_bytes(std::span(own_[part]))), true);
      progress_[part][self_].isAnnounced = false;
    }
  }

  void leave(size_t worker) {
    for (size_t part = 0; part < parts(); ++part)
      if (isUnderWay(worker, part)) return;
    if (hasLeft_[worker]) return;
    hasLeft_[worker] = true;
    adder_.left(worker);
  }

  // All that has begun goes on, about once.
  bool allMove() {
    bool moved = false;
    for (size_t worker = 0; worker < workers_; ++worker) {
      moved |= write(worker);
      moved |= take(worker);
      for (size_t part = 0; part < parts(); ++part)
        if (isUnderWay(worker, part)) moved |= send(worker, part);
    }
    checkOwn();
    return moved;
  }

  static summation::Declaration drawn(Choices& choices, size_t workers, size_t self) {
    summation::Declaration declaration;
    declaration.workers = workers;
    declaration.mode = {true, kStaleness[choices.below(kStaleness.size())]};
    for (size_t left = 1 + choices.below(3); left > 0; --left) {
      const uint64_t bytes = sizeof(uint64_t) * kElements[choices.below(kElements.size())];
      declaration.parts.push_back({declaration.tensors.size(), 0, bytes, self});
      declaration.tensors.push_back({group::DataType::kInt64, bytes});
    }
    return declaration;
  }

  Choices choices_;
  const size_t workers_ = 1 + choices_.below(4);
  const size_t self_ = choices_.below(workers_ + 1);  // the last one is a server
  const uint64_t grantBytes_ = kGrantBytes[choices_.below(kGrantBytes.size())];
  const summation::Declaration declaration_ = drawn(choices_, workers_, self_);
  summation::AsynchronousAdder adder_{declaration_, self_, grantBytes_};
  std::vector<std::vector<Progress>> progress_{parts(), std::vector<Progress>(workers_)};  // by part and worker
  std::vector<bool> hasLeft_ = std::vector<bool>(workers_);
  std::vector<std::optional<Outgoing>> writing_{workers_};
  std::vector<std::vector<std::byte>> atTake_{workers_};  // the piece, by worker
  std::vector<std::vector<uint64_t>> own_;                // by part
  bool isOver_ = false;
};

void feed(Bytes input) { Play(input).play(); }

Inputs seeds() {
  // Workers less one, the machine, its limit, staleness; tensors less one and their sizes.
  const auto server = row({2, 3, 2, 3, 1, 3, 1}), bounded = row({1, 2, 0, 0, 2, 1, 2, 0});
  const auto worker = row({1, 0, 1, 1, 0, 3}), alone = row({0, 0, 0, 3, 0, 2});
  const auto first = row({kSend, 0, 0, kTake, 0, 0, kWrite, 0, 0});
  const auto moves = row({kAllMove, 0, 0, kAllMove, 0, 0, kAllMove, 0, 0});
  const auto others = row({kSend, 1, 0, kSend, 1, 1, kAllMove, 0, 0});
  Inputs all = {joined({server, first, moves, others, moves}), joined({bounded, first, moves, first, moves, others}),
                joined({worker, row({kOwn, 0, 0}), others, moves, row({kOwn, 0, 0, kLeave, 1, 0})}),
                joined({alone, row({kOwn, 0, 0, kOwn, 0, 0, kLeave, 0, 0})}),
                joined({bounded, first, moves, row({kLeave, 1, 0}), first, moves})};
  for (int field = 0; field < 6; ++field) {
    all.push_back(joined({server, row({kSendAny, 0, 0, field, 4, 0, 0, 0, 0, 0, 0, 0, 1})}));
    all.push_back(joined({server, first, row({kSendAny, 0, 0, field, 4, 0, 0, 0, 0, 0, 0, 0, 1})}));
  }
  return all;
}

const Fuzzer kSummationAsynchronous("summation_asynchronous", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_asynchronous_fuzz
