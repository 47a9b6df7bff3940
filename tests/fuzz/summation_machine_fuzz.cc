// One machine of a summation service (summation/synchronous_adder.h, requester.h), called as its pump calls it, among
// peers that send what they may, or any frame. The input has a few bytes for each step: what happens, and at which
// machine.
//
// A model of what the machine and its peers have told each other says which frames may come and which must go out. A
// refused frame ends an input, as it ends a pump; at the end of any other one all sums that have begun must end.

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/base/error.h"
#include "treadle/core/summation/requester.h"
#include "treadle/core/summation/synchronous_adder.h"

namespace treadle::fuzz::summation_machine_fuzz {
namespace {

using summation::Declaration;
using summation::Frame;
using summation::FrameKind;
using summation::kPieceBytes;
using summation::Machine;
using summation::Outgoing;

constexpr size_t kMostSteps = 200;
constexpr uint64_t kNoLastRound = UINT64_MAX;
constexpr std::array<uint64_t, 6> kElements = {1, 0, 1000, 8192, 8193, 20'000};  // of a tensor; a piece has 8192
constexpr std::array kKinds = {FrameKind::kAnnounce, FrameKind::kGrant, FrameKind::kAddend,
                               FrameKind::kSum,      FrameKind::kHave,  FrameKind::kRelease};
constexpr std::array<uint64_t, 4> kGrantBytes = {1, 8 << 10, 64 << 10, 256 << 10};

enum Step : uint8_t { kAnnounce, kSend, kSendAny, kRead, kTake, kWrite, kAllMove, kSteps };

bool hasPiece(FrameKind kind) { return kind == FrameKind::kAddend || kind == FrameKind::kSum; }

// Element i of a part is (i + 1) times a factor, on each worker another one in each round. So it is in a sum.
uint32_t factorOf(Machine worker, size_t part, uint64_t round) {
  return static_cast<uint32_t>((round * 64 + part) * 8 + worker + 1) * 2'654'435'761U;
}

uint32_t elementAt(uint64_t offset, uint32_t factor) {
  return static_cast<uint32_t>(offset / sizeof factor + 1) * factor;
}

// Of the bytes of a part from `offset` on.
void fill(MutableBytes bytes, uint64_t offset, uint32_t factor) {
  for (size_t at = 0; at < bytes.size(); at += sizeof factor) {
    const uint32_t element = elementAt(offset + at, factor);
    std::memcpy(bytes.data() + at, &element, sizeof element);
  }
}

bool holds(Bytes bytes, uint64_t offset, uint32_t factor) {
  for (size_t at = 0; at < bytes.size(); at += sizeof factor) {
    uint32_t element = 0;
    std::memcpy(&element, bytes.data() + at, sizeof element);
    if (element != elementAt(offset + at, factor)) return false;
  }
  return true;
}

bool overlap(Bytes a, Bytes b) { return a.data() < b.data() + b.size() && b.data() < a.data() + a.size(); }

Declaration drawnDeclaration(Choices& choices, size_t workers, size_t machines) {
  std::vector<Declaration::Tensor> tensors(1 + choices.below(3));
  for (auto& tensor : tensors) tensor = {group::DataType::kInt32, 4 * kElements[choices.below(kElements.size())]};
  std::vector<double> shares(machines);
  for (double& share : shares) share = static_cast<double>(choices.below(4));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share = all > 0 ? share / all : 1 / static_cast<double>(machines);
  const auto servers = shares.begin() + static_cast<std::ptrdiff_t>(workers);
  return valueOrThrow(Declaration::of(std::move(tensors), {{shares.begin(), servers}, {servers, shares.end()}}));
}

// A worker and the machine that sums a part, one of which is the machine under test: what it has told the other, and
// has heard.
struct Progress {
  uint64_t round = 0;
  bool isUnderWay = false;         // the worker has announced the round
  bool isTaken = false;            // the announcement or the grant, from the machine under test
  bool isHeard = false;            // the announcement, by the machine that sums
  bool isGranted = false;          // and the worker knows
  uint64_t taken = 0;              // pieces, from the machine under test
  uint64_t addends = 0, sums = 0;  // pieces that have come
  // Of a part that a server sums: the rounds whose sums the worker has said it has, as the server knows, and those that
  // all have, as it has said.
  uint64_t had = 0, hadHeard = 0, released = 0;

  void endRound() { *this = {.round = round + 1, .had = had, .hadHeard = hadHeard, .released = released}; }
};

// The frame about a part that a machine under test may take.
struct Possible {
  size_t part = 0;
  Frame frame;
  bool isKnown = true;  // to the peer; or it could only guess
};

class Play {
 public:
  explicit Play(Bytes input) : choices_(input) {
    for (size_t part = 0; self_ < workers_ && part < parts(); ++part)
      data_[part].resize(declaration_.parts[part].bytes() / sizeof(uint32_t));
  }

  void play() {
    if (parts() == 0) return;
    for (size_t count = 0; count < kMostSteps && choices_.any() && !isOver_; ++count) {
      step(static_cast<Step>(choices_.below(kSteps)));
      checkEnded();
    }
    if (!isOver_) end();
  }

 private:
  struct Incoming {
    Possible what;
    MutableBytes room;
  };
  struct Connection {
    std::optional<Incoming> reading;  // a piece of which half has come
    std::optional<Outgoing> writing;
    bool isOfAdder = false;
  };

  size_t parts() const { return declaration_.parts.size(); }
  bool isOwn(size_t part) const { return declaration_.parts[part].machine == self_; }
  Progress& between(Machine peer, size_t part) { return progress_[part][isOwn(part) ? peer : self_]; }
  MutableBytes dataOf(size_t part) { return std::as_writable_bytes(std::span(data_[part])); }
  bool isKept(size_t part) const { return declaration_.parts[part].machine >= workers_; }
  FrameKind anyKind() { return kKinds[choices_.below(kKinds.size())]; }
  size_t anyPart() { return choices_.below(parts()); }
  Machine anyPeer() {
    const Machine peer = choices_.below(machines_ - 1);
    return peer < self_ ? peer : peer + 1;
  }

  uint32_t factorOfSum(size_t part, uint64_t round) const {
    uint32_t factor = 0;
    for (Machine worker = 0; worker < workers_; ++worker) factor += factorOf(worker, part, round);
    return factor;
  }
  Frame frameOf(FrameKind kind, size_t part, uint64_t round, uint64_t piece = 0) const {
    const auto size = static_cast<uint32_t>(hasPiece(kind) ? declaration_.bytesOf(part, piece) : 0);
    const auto tensor = static_cast<uint32_t>(declaration_.parts[part].tensor);
    return {kind, size, tensor, round, declaration_.beginOf(part, piece)};
  }
  // In the part.
  uint64_t offsetOf(size_t part, const Frame& frame) const { return frame.offset - declaration_.parts[part].begin; }

  // ---- what may happen

  // Of a part that the machine under test sums.
  bool allHaveAnnounced(size_t part, uint64_t round) const {
    return std::ranges::all_of(progress_[part], [&](const Progress& worker) {
      return worker.round > round || (worker.round == round && worker.isUnderWay);
    });
  }
  bool allOthersHaveSums(size_t part, uint64_t round) const {
    for (Machine worker = 0; worker < workers_; ++worker)
      if (worker != self_ && progress_[part][worker].round <= round) return false;
    return true;
  }
  // Rounds whose sums all workers have, as they have said.
  uint64_t allHave(size_t part) const { return std::ranges::min(progress_[part], {}, &Progress::had).had; }
  // Pieces that have come from all workers.
  uint64_t complete(size_t part, uint64_t round) const {
    uint64_t pieces = declaration_.piecesOf(part);
    for (Machine worker = 0; worker < workers_; ++worker)
      if (worker != self_ && progress_[part][worker].round <= round)
        pieces = std::min(pieces, progress_[part][worker].addends);
    return pieces;
  }

  // From a peer.
  std::optional<Possible> possible(Machine from, size_t part) {
    if (isOwn(part) ? from >= workers_ : self_ >= workers_ || declaration_.parts[part].machine != from) return {};
    const Progress& so = between(from, part);
    if (isOwn(part)) {
      if (isKept(part) && so.had < so.round) return Possible{part, frameOf(FrameKind::kHave, part, so.round)};
      if (!so.isUnderWay) return Possible{part, frameOf(FrameKind::kAnnounce, part, so.round)};
      if (so.addends == declaration_.piecesOf(part) || !allHaveAnnounced(part, so.round)) return {};
      return Possible{part, frameOf(FrameKind::kAddend, part, so.round, so.addends), so.isGranted};
    }
    if (isKept(part) && so.released < so.round)
      return Possible{part, frameOf(FrameKind::kRelease, part, so.round), so.hadHeard == so.round};
    if (so.isTaken && !so.isGranted) return Possible{part, frameOf(FrameKind::kGrant, part, so.round), so.isHeard};
    if (so.sums == so.addends) return {};
    return Possible{part, frameOf(FrameKind::kSum, part, so.round, so.sums)};
  }
  std::optional<Possible> possible(Machine from, const Frame& frame) {
    for (size_t part = 0; part < parts(); ++part)
      if (const auto one = possible(from, part); one && one->frame == frame) return one;
    return {};
  }

  // A worker may hear before this machine that a part has moved to here from its server; it says once what it has.
  std::optional<size_t> mayHaveMoved(Machine from, const Frame& frame) const {
    const std::optional<size_t> part = declaration_.partAt(frame.tensor, frame.offset);
    if (frame.kind != FrameKind::kHave || from >= workers_ || !part || isOwn(*part) || !isKept(*part)) return {};
    const auto mayBoth = [&](const std::optional<uint64_t>& other) {
      return !other || std::max(*other, frame.round) - std::min(*other, frame.round) <= 1;
    };
    const auto& early = early_[*part];
    const bool isPossible = declaration_.parts[*part].begin == frame.offset && !early[from] &&
                            std::all_of(early.begin(), early.end(), mayBoth);
    return isPossible ? part : std::nullopt;
  }

  std::optional<size_t> firstPart(auto isIt) const {
    for (size_t part = 0; part < parts(); ++part)
      if (isIt(part)) return part;
    return {};
  }
  std::optional<size_t> sumFor(Machine peer) {
    return firstPart([&](size_t part) {
      if (!isOwn(part) || peer >= workers_) return false;
      const Progress& so = between(peer, part);
      return so.isUnderWay && so.taken < complete(part, so.round);
    });
  }
  std::optional<size_t> releaseFor(Machine peer) {
    return firstPart([&](size_t part) {
      if (!isOwn(part) || !isKept(part) || peer >= workers_) return false;
      return between(peer, part).released < allHave(part);
    });
  }
  std::optional<size_t> haveFor(Machine peer) {
    return firstPart([&](size_t part) {
      if (self_ >= workers_ || declaration_.parts[part].machine != peer || !isKept(part)) return false;
      return between(peer, part).had < between(peer, part).round;
    });
  }
  std::optional<size_t> announcementFor(Machine peer) {
    return firstPart([&](size_t part) {
      if (self_ >= workers_ || declaration_.parts[part].machine != peer) return false;
      return between(peer, part).isUnderWay && !between(peer, part).isTaken;
    });
  }
  std::optional<size_t> addendFor(Machine peer) {
    return firstPart([&](size_t part) {
      if (self_ >= workers_ || declaration_.parts[part].machine != peer) return false;
      return between(peer, part).isGranted && between(peer, part).taken < declaration_.piecesOf(part);
    });
  }

  // ---- what happens

  void step(Step what) {
    if (what == kAnnounce) return (void)announce(anyPart());
    if (what == kAllMove) return (void)allMove();
    if (machines_ == 1) return;
    const Machine peer = anyPeer();
    switch (what) {
      case kSend: return (void)send(peer, anyPart());
      case kSendAny: return receive(peer, anyFrame(peer));
      case kRead: return (void)read(peer);
      case kTake: return (void)take(peer);
      default: return (void)write(peer);
    }
  }

  // Of the worker under test, as soon as it may.
  bool announce(size_t part) {
    if (self_ >= workers_) return false;
    Progress& so = progress_[part][self_];
    if (so.isUnderWay || so.round >= lastRounds_[part]) return false;
    promise(so.round == 0 || holds(dataOf(part), 0, factorOfSum(part, so.round - 1)), "a sum that has ended stays");
    fill(dataOf(part), 0, factorOf(self_, part, so.round));
    so.isUnderWay = true;
    isOwn(part) ? adder_.announceOwn(part, dataOf(part)) : requester_.announce(part, dataOf(part));
    return true;
  }

  // The next frame about a part that a peer knows of.
  bool send(Machine from, size_t part) {
    read(from);
    const std::optional<Possible> next = possible(from, part);
    if (!next || !next->isKnown) return false;
    if (next->frame.kind == FrameKind::kAnnounce && next->frame.round >= lastRounds_[part]) return false;
    receive(from, next->frame);
    return true;
  }

  // The next one of its kind, whether or not it may come, and mostly something in it is different.
  Frame anyFrame(Machine from) {
    const size_t part = anyPart();
    const FrameKind kind = anyKind();
    const Machine worker = isOwn(part) ? from : self_;
    const Progress& so = progress_[part][worker < workers_ ? worker : 0];
    const uint64_t piece = kind == FrameKind::kAddend ? so.addends : so.sums;
    Frame frame = frameOf(kind, part, so.round, piece);
    switch (choices_.below(16)) {
      case 0: frame.tensor = choices_.number<uint32_t>(); break;
      case 1: frame.tensor = static_cast<uint32_t>(choices_.below(4)); break;
      case 2: frame.round = choices_.number<uint64_t>(); break;
      case 3: ++frame.round; break;
      case 4: --frame.round; break;
      case 5: frame.offset = choices_.number<uint64_t>(); break;
      case 6: frame.offset += static_cast<uint64_t>(int64_t{choices_.number<int8_t>()}); break;
      case 7: frame = frameOf(kind, part, so.round, piece + 1); break;
      case 8: frame = frameOf(kind, part, so.round, piece - 1); break;
      case 9: frame.sizeBytes = 1U + choices_.number<uint16_t>(); break;
      case 10: frame.kind = anyKind(); break;
      default: break;
    }
    if (!hasPiece(frame.kind)) {
      frame.sizeBytes = 0;
    } else if (frame.sizeBytes == 0) {
      frame.sizeBytes = kPieceBytes;
    }
    return frame;
  }

  // Half of a piece comes at once, and the rest later.
  void receive(Machine from, const Frame& frame) {
    read(from);
    if (const std::optional<size_t> part = mayHaveMoved(from, frame)) {
      promise(adder_.had(from, frame).ok(), "a part may have moved to here, of which its machine has not heard");
      early_[*part][from] = frame.round;
      return;
    }
    const std::optional<Possible> what = possible(from, frame);
    if (!hasPiece(frame.kind)) {
      if (!judge(takenWithoutPiece(from, frame), what)) return;
      Progress& so = between(from, what->part);
      switch (frame.kind) {
        case FrameKind::kAnnounce: so.isUnderWay = true; return;
        case FrameKind::kGrant: so.isGranted = true; return;
        case FrameKind::kHave: so.had = frame.round; return;
        default: so.released = frame.round; return;
      }
    }
    const bool isAddend = frame.kind == FrameKind::kAddend;
    const Result<MutableBytes> room = isAddend ? adder_.roomFor(from, frame) : requester_.roomFor(from, frame);
    if (!judge(room.status(), what)) return;
    promise(room->size() == frame.sizeBytes, "the room for a piece has its size");
    const uint64_t offset = offsetOf(what->part, frame);
    if (isAddend) {
      isOpen_[what->part] = true;
      checkGranted();
      checkPlace(from, what->part, *room, offset);
    } else {
      promise(room->data() == dataOf(what->part).data() + offset, "a piece of a sum has its place in the data");
    }
    fill(halfOf(*room), offset, factorOfPiece(from, *what));
    connections_[from].reading = Incoming{*what, *room};
  }

  Status takenWithoutPiece(Machine from, const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::kAnnounce: return adder_.announced(from, frame);
      case FrameKind::kGrant: return requester_.granted(from, frame);
      case FrameKind::kHave: return adder_.had(from, frame);
      default: return requester_.released(from, frame);
    }
  }

  bool judge(const Status& taken, const std::optional<Possible>& what) {
    isOver_ = !taken.ok();
    promise(taken.ok() || taken.code() == Code::kDataLoss, "a frame is refused in one way");
    promise(!taken.ok() || what, "nothing is taken that may not come");
    promise(taken.ok() || !what || !what->isKnown, "nothing is refused that a peer may send");
    return taken.ok();
  }

  static MutableBytes halfOf(MutableBytes room) { return room.first(room.size() / 8 * 4); }
  uint32_t factorOfPiece(Machine from, const Possible& what) const {
    return what.frame.kind == FrameKind::kAddend ? factorOf(from, what.part, what.frame.round)
                                                 : factorOfSum(what.part, what.frame.round);
  }

  // The memory for a worker's data of an open part is in one stretch, and for nothing else.
  void checkPlace(Machine worker, size_t part, MutableBytes room, uint64_t offset) {
    Bytes& place = places_[part][worker];
    if (offset == 0) {
      promise(place.empty(), "memory is given to a part once");
      place = {room.data(), declaration_.parts[part].bytes()};
      for (size_t other = 0; other < parts(); ++other) {
        promise(!overlap(place, dataOf(other)), "nobody sends into the data of another one");
        for (Machine of = 0; of < workers_; ++of)
          promise((other == part && of == worker) || !overlap(place, places_[other][of]), "memory has one use");
      }
    }
    promise(room.data() == place.data() + offset, "a piece has its place in the part");
  }

  void checkGranted() const {
    uint64_t bytes = 0;
    for (size_t part = 0; part < parts(); ++part)
      if (isOpen_[part]) bytes += summation::PartMemory::sizeFor(declaration_.parts[part].bytes());
    promise(bytes <= grantBytes_ || std::ranges::count(isOpen_, true) == 1, "grants keep the limit, or one is alone");
  }

  // The rest of a piece.
  bool read(Machine from) {
    const std::optional<Incoming> incoming = std::exchange(connections_[from].reading, {});
    if (!incoming) return false;
    const auto& [what, room] = *incoming;
    const uint64_t offset = offsetOf(what.part, what.frame);
    const uint32_t factor = factorOfPiece(from, what);
    promise(holds(halfOf(room), offset, factor), "nobody else writes where a piece is read");
    fill(room, offset, factor);
    Progress& so = between(from, what.part);
    if (what.frame.kind == FrameKind::kAddend) {
      adder_.arrived(from, what.frame);
      ++so.addends;
      return true;
    }
    const bool isLast = ++so.sums == declaration_.piecesOf(what.part);
    promise(requester_.arrived(what.frame).ok(), "a piece that has room is taken");
    promise(requester_.takeDone() == (isLast ? std::vector{what.part} : std::vector<size_t>()),
            "a part has its sum with the last piece");
    if (isLast) endRound(what.part);
    return true;
  }

  // A frame begins to be written.
  bool take(Machine peer) {
    Connection& connection = connections_[peer];
    if (connection.writing) return false;
    const std::optional<size_t> ofAdder = peer < workers_ ? adder_.next(peer) : std::nullopt;
    const std::optional<size_t> ofRequester = requester_.next(peer);
    const bool isReport = haveFor(peer) || announcementFor(peer);
    promise(ofAdder || (!sumFor(peer) && !releaseFor(peer)), "a sum and a release go out");
    promise(ofRequester == (isReport ? std::optional<size_t>(0) : addendFor(peer)), "reports go out, then addends");
    if (!ofAdder && !ofRequester) return false;
    connection.isOfAdder = ofAdder && (!ofRequester || *ofAdder <= *ofRequester);
    const Outgoing frame = (connection.isOfAdder ? adder_.take(peer) : requester_.take(peer)).value();
    connection.isOfAdder ? checkOfAdder(peer, frame) : checkOfRequester(peer, frame);
    Progress& so = between(peer, frame.part);
    const FrameKind kind = frame.frame.kind;
    const uint64_t round = kind == FrameKind::kRelease ? allHave(frame.part) : so.round;
    promise(frame.frame == frameOf(kind, frame.part, round, so.taken), "the next frame goes out");
    if (kind == FrameKind::kRelease) so.released = round;
    if (kind == FrameKind::kHave) so.had = round;
    if (kind == FrameKind::kAnnounce || kind == FrameKind::kGrant) so.isTaken = true;
    if (hasPiece(kind)) ++so.taken;
    checkPiece(frame);
    connection.writing = frame;
    return true;
  }

  void checkOfAdder(Machine peer, const Outgoing& frame) {
    const auto release = releaseFor(peer);
    if (release || frame.frame.kind == FrameKind::kRelease)
      return promise(frame.frame.kind == FrameKind::kRelease && frame.part == release, "releases go first");
    if (frame.frame.kind == FrameKind::kSum) return promise(frame.part == sumFor(peer), "the first tensor's sum goes");
    promise(frame.frame.kind == FrameKind::kGrant && frame.part < parts() && isOwn(frame.part), "it grants its parts");
    const Progress& so = between(peer, frame.part);
    promise(allHaveAnnounced(frame.part, so.round), "it grants what all have announced");
    promise(so.isUnderWay && !so.isTaken, "it grants once");
    isOpen_[frame.part] = true;
    checkGranted();
  }
  void checkOfRequester(Machine peer, const Outgoing& frame) {
    const auto have = haveFor(peer);
    if (have || frame.frame.kind == FrameKind::kHave)
      return promise(frame.frame.kind == FrameKind::kHave && frame.part == have, "what it has goes first");
    const auto announcement = announcementFor(peer);
    promise(frame.frame.kind == (announcement ? FrameKind::kAnnounce : FrameKind::kAddend), "announcements go first");
    promise(frame.part == (announcement ? announcement : addendFor(peer)), "the first tensor goes first");
  }

  // From when it is taken until it is written.
  void checkPiece(const Outgoing& frame) {
    const auto& [kind, size, tensor, round, offset] = frame.frame;
    promise(frame.piece.size() == size, "a piece has its size");
    if (size == 0) return;
    const uint64_t inPart = offsetOf(frame.part, frame.frame);
    promise(self_ >= workers_ || frame.piece.data() == dataOf(frame.part).data() + inPart, "it is in the data");
    const bool isSum = kind == FrameKind::kSum;
    promise(holds(frame.piece, inPart, isSum ? factorOfSum(frame.part, round) : factorOf(self_, frame.part, round)),
            "what goes out is right, and stays so until it is written");
  }

  bool write(Machine peer) {
    Connection& connection = connections_[peer];
    const std::optional<Outgoing> frame = std::exchange(connection.writing, {});
    if (!frame) return false;
    checkPiece(*frame);
    connection.isOfAdder ? adder_.written(peer, *frame) : requester_.written(*frame);
    Progress& so = between(peer, frame->part);
    switch (frame->frame.kind) {
      case FrameKind::kAnnounce: so.isHeard = true; break;
      case FrameKind::kGrant: so.isGranted = true; break;
      case FrameKind::kAddend: ++so.addends; break;
      case FrameKind::kSum:
        if (++so.sums == declaration_.piecesOf(frame->part)) endRoundOf(peer, frame->part);
        break;
      case FrameKind::kHave: so.hadHeard = frame->frame.round; break;
      case FrameKind::kRelease: break;
      case FrameKind::kVersion:
      case FrameKind::kLeave: promise(false, "neither an adder nor a requester sends it");
    }
    return true;
  }

  void endRoundOf(Machine worker, size_t part) {
    Progress& so = progress_[part][worker];
    const uint64_t round = so.round;
    so.endRound();
    if (!allOthersHaveSums(part, round)) return;
    isOpen_[part] = false;
    std::ranges::fill(places_[part], Bytes());
  }

  // Of the worker under test.
  void endRound(size_t part) {
    Progress& so = progress_[part][self_];
    promise(holds(dataOf(part), 0, factorOfSum(part, so.round)), "a part that has ended is the sum");
    so.endRound();
  }

  void checkEnded() {
    if (isOver_) return;
    for (const size_t part : adder_.takeDone()) {
      promise(self_ < workers_ && part < parts() && isOwn(part) && progress_[part][self_].isUnderWay, "its parts end");
      promise(allOthersHaveSums(part, progress_[part][self_].round), "a part ends when all have the sum");
      endRound(part);
    }
    for (size_t part = 0; self_ < workers_ && part < parts(); ++part)
      promise(isOwn(part) || requester_.isDone(part) != progress_[part][self_].isUnderWay, "a part ends once");
  }

  // All that can happen does, about once.
  bool allMove() {
    bool moved = false;
    for (size_t part = 0; part < parts(); ++part) moved |= announce(part);
    for (Machine peer = 0; peer < machines_; ++peer) {
      if (peer == self_) continue;
      moved |= write(peer);
      moved |= take(peer);
      moved |= read(peer);
      for (size_t part = 0; part < parts(); ++part) moved |= send(peer, part);
    }
    checkEnded();
    return moved;
  }

  // All workers take part in the rounds that one has begun, and in no more.
  void end() {
    for (size_t part = 0; part < parts(); ++part) {
      lastRounds_[part] = 0;
      for (const Progress& so : progress_[part])
        lastRounds_[part] = std::max(lastRounds_[part], so.round + uint64_t{so.isUnderWay});
    }
    while (allMove()) {}
    for (size_t part = 0; part < parts(); ++part)
      for (Machine worker = 0; worker < workers_; ++worker)
        if (isOwn(part) || worker == self_)
          promise(progress_[part][worker].round == lastRounds_[part] &&
                      (!isKept(part) || progress_[part][worker].released == lastRounds_[part]),
                  "sums that have begun end, and their copies are released");
  }

  Choices choices_;
  const size_t workers_ = 1 + choices_.below(4), machines_ = workers_ + choices_.below(3);
  const Machine self_ = choices_.below(machines_);
  const uint64_t grantBytes_ = kGrantBytes[choices_.below(kGrantBytes.size())];
  const Declaration declaration_ = drawnDeclaration(choices_, workers_, machines_);
  std::vector<std::vector<uint32_t>> data_{parts()};  // by part, of a worker under test
  summation::SynchronousAdder adder_{declaration_, self_, grantBytes_};
  summation::Requester requester_{declaration_, self_, machines_};
  std::vector<Connection> connections_{machines_};
  // By part and worker; of a part that another machine sums only the worker under test.
  std::vector<std::vector<Progress>> progress_{parts(), std::vector<Progress>(workers_)};
  std::vector<std::vector<Bytes>> places_{parts(), std::vector<Bytes>(workers_)};  // of what is sent, while it is open
  // Of a part of another machine: the rounds that workers have said they have.
  std::vector<std::vector<std::optional<uint64_t>>> early_{parts(), std::vector<std::optional<uint64_t>>(workers_)};
  std::vector<bool> isOpen_ = std::vector<bool>(parts());  // as far as anybody can see
  std::vector<uint64_t> lastRounds_ = std::vector<uint64_t>(parts(), kNoLastRound);
  bool isOver_ = false;
};

void feed(Bytes input) { Play(input).play(); }

Inputs seeds() {
  // Workers less one, servers, the machine under test, its limit; tensors less one and their sizes; shares.
  const auto alone = row({0, 0, 0, 0, 0, 2, 1});
  const auto server = row({1, 1, 2, 0, 1, 4, 2, 0, 0, 1});
  const auto worker = row({1, 1, 0, 2, 2, 5, 1, 4, 1, 1, 1});
  const auto many = row({3, 2, 1, 1, 2, 5, 5, 3, 1, 3, 0, 2, 1, 1});
  const auto moves = row({kAllMove, kAllMove, kAllMove, kAllMove, kAllMove, kAllMove, kAllMove, kAllMove});
  const auto granted = row({kSend, 0, 0, kSend, 1, 0, kTake, 0, kWrite, 0, kTake, 1, kWrite, 1});
  const auto told = row({kAnnounce, 1, kTake, 0, kWrite, 0}), heard = joined({told, row({kSend, 0, 1})});
  const auto summed = row({kSend, 0, 0, kSend, 1, 0, kRead, 1, kRead, 0, kTake, 0, kTake, 1, kWrite, 1, kWrite, 0});
  Inputs all = {
      joined({alone, row({kAnnounce, 0, kAnnounce, 0, kAllMove})}),
      joined({server, granted, summed, summed, row({kSend, 0, 0})}),
      joined({server, granted, row({kSend, 0, 0, kSendAny, 0, 0, 2, 9, 255, 127})}),
      joined({worker, heard, row({kTake, 0, kSendAny, 0, 1, 3, 15})}),
      joined({worker, heard, row({kTake, 0, kWrite, 0, kSend, 0, 1, kRead, 0, kTake, 0, kSendAny, 0, 1, 3, 15})}),
      joined({worker, moves, moves, row({kAnnounce, 0, kAnnounce, 2})}),
      joined({many, moves, row({kSendAny, 1, 2, 2, 15}), moves, moves}),
      joined({many, moves, row({kSendAny, 0, 0, 4, 15, kSendAny, 0, 0, 4, 15})}),
      joined({many, moves, row({kSendAny, 1, 2, 2, 2, 255, 255, 255, 255, 255, 255, 255, 255})})};
  // A frame that is due, in which something is different.
  const auto ended = row({kAllMove, kAllMove, kAllMove});
  for (int change = 0; change < 11; ++change) {
    for (const int kind : {4, 5}) {
      all.push_back(joined({server, ended, row({kSendAny, 0, 0, kind, change, 4})}));
      all.push_back(joined({worker, ended, row({kSendAny, 0, 1, kind, change, 4})}));
    }
    all.push_back(joined({server, row({kSendAny, 0, 0, 0, change, 4})}));
    all.push_back(joined({worker, told, row({kSendAny, 0, 1, 1, change, 4})}));
    all.push_back(joined({server, granted, row({kSendAny, 0, 0, 2, change, 4})}));
    all.push_back(joined({worker, heard, row({kTake, 0, kWrite, 0, kSendAny, 0, 1, 3, change, 4})}));
  }
  return all;
}

const Fuzzer kSummationMachine("summation_machine", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_machine_fuzz
