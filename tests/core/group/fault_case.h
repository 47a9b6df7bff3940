#pragma once
// The fault matrix: in each case one member, the victim, comes to a certain phase of one cell and gets no further. The
// rules by which taps hold it there, the members that end well without it, and the part of one member in all cases.

#include <algorithm>
#include <deque>
#include <random>

#include "tests/core/group/cell.h"
#include "tests/core/group/tap.h"

namespace treadle::test {

enum class Phase {
  kAbsent,  // the victim has not called the operation
  kLate,    // likewise, and it answers when others ask; along the tree only
  kBegun,   // it has called the operation and gets nothing
  kAgreed,  // it has got starts and gets no data
  kMoving,  // it has got some data and gets no more
  kDone,    // its part has ended well, and another member waits for one last message
};

inline std::string_view nameOf(Phase phase) {
  constexpr std::string_view kNames[] = {"absent", "late", "begun", "agreed", "moving", "done"};
  return kNames[static_cast<size_t>(phase)];
}

// The last message that a member needs, and that no other member waits for.
struct Missing {
  int member = 0, from = 0;
  bool isStart = false;
  uint64_t position = 0;  // of a chunk
};

struct Case {
  Cell cell;
  Phase phase = Phase::kAbsent;
  int victim = 0;
  int passes = 0;                       // kMoving: chunks and acknowledgements that the victim gets
  std::optional<Missing> missing = {};  // kDone
  std::vector<bool> endsWell = {};      // by rank: it needs nothing more once the victim has come to the phase

  std::string name() const {
    return cell.name() + ", " + std::string(nameOf(phase)) + (passes > 0 ? " " + std::to_string(passes) : "");
  }
  // The member whose tap holds it up.
  std::optional<int> heldMember() const {
    if (missing) return missing->member;
    return phase == Phase::kAbsent || phase == Phase::kLate ? std::nullopt : std::optional(victim);
  }
  // The victim's start goes up the tree when those of its children are there: it does not if the victim gets nothing.
  bool keepsItsStart() const {
    return phase == Phase::kBegun && cell.inTree() && !group::childrenOf(victim, cell.size).empty();
  }
  bool calls(int rank) const {
    return cell.takesPart(rank) && (rank != victim || (phase != Phase::kAbsent && phase != Phase::kLate));
  }
};

// ---- which members need the victim

// The members that have all they need from a victim that sends its start and nothing else, and takes nothing. By a
// simulation with as many chunks, of one element each.
inline std::vector<bool> endingWithout(const Cell& cell, int victim) {
  std::mt19937 random(1);
  Cell few = cell;
  few.chunkBytes = 4;
  few.count = cell.count * 4 / cell.chunkBytes;
  Simulation all(false, random);
  const int members = cell.isSend() ? 2 : cell.size;
  std::optional<int> frozen;
  for (int member = 0; member < members; ++member) {
    if (few.memberOf(member) == victim) frozen = member;
    const Numbers memory(few.count * 4 * static_cast<size_t>(cell.size));
    all.add(few.planOf(few.memberOf(member)), few.chunkElements(), memory, memory);
  }
  if (cell.small()) all.sendFirst();
  all.run(frozen);
  std::vector<bool> done(static_cast<size_t>(cell.size));
  for (int member = 0; member < members; ++member)
    done[static_cast<size_t>(few.memberOf(member))] = member != frozen && all.member(member).progress.done();
  return done;
}

// Whether a transfer of the plan waits for the last one that comes over the channel. Chunks that are combined are taken
// from all channels together.
inline bool isAwaited(const group::Plan& plan, size_t channel) {
  const auto& receives = plan.channels[channel].receives;
  const bool combines = receives.back().action == group::Action::kCombine;
  const auto waits = [&](const group::Received& after) {
    if (after.channel == group::Received::kNone) return false;
    const auto& earlier = plan.channels[after.channel].receives[after.transfer];
    return (combines && earlier.action == group::Action::kCombine) ||
           (after.channel == channel && after.transfer + 1 == receives.size());
  };
  return std::any_of(plan.channels.begin(), plan.channels.end(), [&](const group::Channel& one) {
    return std::any_of(one.sends.begin(), one.sends.end(), [&](const auto& send) { return waits(send.after); }) ||
           std::any_of(one.receives.begin(), one.receives.end(), [&](const auto& got) { return waits(got.after); });
  });
}

// The message without which `member` cannot end while all others can, the victim too; from the victim if possible.
inline std::optional<Missing> lastMessageTo(int member, const Cell& cell, int victim) {
  if (cell.small() && !cell.inTree()) return Missing{member, victim, true};
  if (cell.small()) {
    if (!group::childrenOf(member, cell.size).empty()) return {};
    return Missing{member, group::parentOf(member), true};
  }
  const group::Plan plan = cell.planOf(member);
  const group::Progress progress(plan, cell.chunkElements());
  std::optional<Missing> found;
  for (size_t channel = 0; channel < plan.channels.size(); ++channel) {
    if (progress.receives(channel) == 0 || isAwaited(plan, channel)) continue;
    const int from = cell.memberOf(plan.channels[channel].peer);
    if (!found || from == victim) found = Missing{member, from, false, progress.receives(channel) - 1};
  }
  if (found || cell.inTree() || cell.isSend()) return found;
  // It gets no data that it could lack. The start of a member that it exchanges no data with is as good.
  for (int from = 0; from < cell.size; ++from)
    if (from != member && from != victim && !plan.channelTo(from)) return Missing{member, from, true};
  return {};
}

// Returns nothing if the victim always ends last: as the last one of a ring, the receiver of a large send, or the root
// of a direct reduce.
inline std::optional<Missing> missingOf(const Cell& cell, int victim) {
  std::optional<Missing> found;
  for (int step = 1; step < cell.size && !found; ++step)
    if (const int member = (victim + step) % cell.size; cell.takesPart(member))
      found = lastMessageTo(member, cell, victim);
  return found;
}

// Returns nothing if the cell has no such phase. `passes` is for kMoving.
inline std::optional<Case> caseOf(const Cell& cell, Phase phase, int victim, int passes = 1) {
  Case one{.cell = cell, .phase = phase, .victim = victim};
  one.endsWell.resize(static_cast<size_t>(cell.size));
  switch (phase) {
    case Phase::kAbsent: return one;
    case Phase::kLate:
      if (!cell.inTree()) return {};
      return one;
    case Phase::kBegun:
      if (!one.keepsItsStart()) one.endsWell = endingWithout(cell, victim);
      return one;
    case Phase::kAgreed:
    case Phase::kMoving:
      if (cell.small()) return {};
      if (phase == Phase::kMoving) one.passes = passes;
      one.endsWell = endingWithout(cell, victim);
      return one;
    case Phase::kDone:
      one.missing = missingOf(cell, victim);
      if (!one.missing) return {};
      for (int rank = 0; rank < cell.size; ++rank)
        one.endsWell[static_cast<size_t>(rank)] = cell.takesPart(rank) && rank != one.missing->member;
      return one;
  }
  return {};
}

// Every cell in every one of these phases; kMoving with each number of messages up to the setting's.
inline std::vector<Case> casesOf(const Setting& setting, const std::vector<Phase>& phases) {
  std::vector<Case> cases;
  for (const Cell& cell : cellsOf(setting))
    for (Phase phase : phases)
      for (int passes = 1; passes <= (phase == Phase::kMoving ? setting.most : 1); ++passes)
        if (std::optional<Case> one = caseOf(cell, phase, setting.victim, passes)) cases.push_back(std::move(*one));
  return cases;
}

// ---- how a member comes to its phase

// A message of the operation of a case, which comes after the barrier of all members or is the first of its stream.
inline bool isOfCase(const Cell& cell, const group::Message& message) {
  const bool inStream = message.stream != group::Stream::kAll;
  return inStream == cell.isSend() && message.sequence == (inStream ? 0 : 1);
}

// The rule of this member's tap; empty for most members.
inline Tap::Rule ruleOf(const Case& one, int rank) {
  if (one.heldMember() != rank) return {};
  if (one.missing)
    return [cell = one.cell, missing = *one.missing](int from, const group::Message& message) {
      if (from != missing.from || !isOfCase(cell, message)) return false;
      if (missing.isStart) return message.kind == group::MessageKind::kStart;
      return message.kind == group::MessageKind::kChunk && message.position == missing.position;
    };
  return [cell = one.cell, begun = one.phase == Phase::kBegun, left = one.passes](
             int, const group::Message& message) mutable {
    if (!isOfCase(cell, message)) return false;
    if (begun) return true;
    const bool isData = message.kind == group::MessageKind::kChunk || message.kind == group::MessageKind::kAck;
    return isData && --left < 0;
  };
}

// One call of one member.
struct Called {
  CellData data;
  Future<void> future;
  bool hasResult() const { return data.output == data.wanted; }
};

// The part of one member in all cases. One thread.
class Seat {
 public:
  // `job` is the member's worker, `names` are those of all members by rank.
  Seat(group::Job& job, Tap& tap, std::vector<std::string> names, int rank)
      : job_(job), tap_(tap), names_(std::move(names)), rank_(rank) {}

  int rank() const { return rank_; }

  // The groups that have had messages so far are none of the cases'.
  void skipGroups() { skipped_ = tap_.groups(); }
  // Makes the group of the next case, in which all members meet.
  Future<void> meet(const Case& one) {
    const std::string name = "case " + std::to_string(parts_.size());
    parts_.push_back({.handle = ProcessGroup::make(job_, names_, one.cell.options(name))});
    return barrier(parts_.back().handle);
  }
  // All have met.
  void setRule(size_t index, const Case& one) {
    Part& part = parts_[index];
    part.number = tap_.groupAt(skipped_ + index);
    part.met = tap_.seenOf(part.number).count();
    if (Tap::Rule rule = ruleOf(one, rank_)) tap_.setRule(part.number, std::move(rule));
  }
  void call(size_t index, const Cell& cell) {
    prepare(index, cell);
    start(index, cell);
  }
  // The two halves of a call: its data, which takes time to make, and its operation, whose timeout begins.
  void prepare(size_t index, const Cell& cell) { parts_[index].calls.push_back({cell.dataOf(rank_), {}}); }
  void start(size_t index, const Cell& cell, Duration timeout = kNoTimeout) {
    Part& part = parts_[index];
    Called& called = part.calls.back();
    called.future = cell.start(part.handle.withTimeout(timeout), called.data);
  }

  // Returns when so many messages of the group have come since all met.
  void waitForMore(size_t index, int messages) {
    const Part& part = parts_[index];
    tap_.seenOf(part.number).waitFor(part.met + messages);
  }
  bool isHeld(size_t index) { return tap_.heldOf(parts_[index].number).count() > 0; }
  void waitUntilHeld(size_t index) { tap_.heldOf(parts_[index].number).waitFor(1); }
  // Nothing of the group comes any more.
  void silence(size_t index) {
    tap_.setRule(parts_[index].number, [](int, const group::Message&) { return true; });
  }

  const ProcessGroup& handle(size_t index) const { return parts_[index].handle; }
  // Its calls in the group so far, but for the barrier.
  const std::deque<Called>& calls(size_t index) const { return parts_[index].calls; }

 private:
  struct Part {
    ProcessGroup handle;
    std::deque<Called> calls = {};  // they stay in place
    uint64_t number = 0;            // the group's
    int met = 0;                    // messages that had come when all had met
  };

  group::Job& job_;
  Tap& tap_;
  const std::vector<std::string> names_;
  const int rank_;
  size_t skipped_ = 0;      // groups
  std::deque<Part> parts_;  // by case
};

}  // namespace treadle::test
