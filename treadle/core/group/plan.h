#pragma once
// One member's part in a collective operation, as data: the elements that it sends to each peer, those that it receives
// and their effect, and the transfers that come before. An algorithm is a pure function that yields the plan of one
// member; ChunkedOperation executes it, and tests execute the plans of all members together. Pure values.
//
// A transfer moves elements from one member to another, in chunks. A channel joins two members: its transfers go over
// it in their order, each direction by itself. The n-th transfer that a member sends is the n-th that its peer
// receives, and both have the same number of elements.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace treadle::group {

enum class Area : uint8_t {
  kInput,    // the caller's, only read
  kOutput,   // the caller's; may be the same memory as the input
  kScratch,  // made for this operation
};

// Elements [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

struct Place {
  Area area = Area::kOutput;
  Range range;
};

// What arriving elements do.
enum class Action : uint8_t {
  kReplace,     // become the elements of the place
  kReduce,      // are reduced with the operand, into the place
  kReduceLast,  // the same; the result is whole, so that an average is divided
  // Are kept until those of all channels that combine are there. Then they are reduced by rank, with the operand as
  // this member's own, into the place; an average is divided. It is the first transfer of each channel that has one,
  // and of the same elements on all.
  kCombine,
};

// A transfer that this member receives, for others that come after it. By default there is none.
struct Received {
  static constexpr size_t kNone = SIZE_MAX;
  size_t channel = kNone, transfer = 0;
  // A transfer after this one waits until all of it has been taken. Otherwise it has as many elements and follows chunk
  // by chunk: its chunk i waits until chunk i of this one has been taken.
  bool all = false;

  Received whole() const { return {channel, transfer, true}; }
};

struct Send {
  Place from;
  Received after;
  const Range& range() const { return from.range; }
};

struct Receive {
  Place to;
  Action action = Action::kReplace;
  Place operand;
  Received after;
  const Range& range() const { return to.range; }
};

// Elements of all of them.
template <class Transfers>
uint64_t elementsOf(const Transfers& transfers) {
  uint64_t elements = 0;
  for (const auto& transfer : transfers) elements += transfer.range().count();
  return elements;
}

struct Channel {
  int peer = 0;  // rank in the group
  // How many chunks may be under way, in each direction. Both members have the same.
  uint64_t window = 8;
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

struct Copy {
  Place from, to;
};

struct Plan {
  std::vector<Channel> channels;
  std::vector<Copy> copies;  // here, without a transfer
  uint64_t scratch = 0;      // elements
  // The data is small and travels with the starts: on each channel one chunk at most in each direction.
  bool withStarts = false;

  // These add a transfer to the channel to `peer`, which is made if it is not there.
  void send(int peer, Place from, Received after = {});
  Received receive(int peer, Place to, Received after = {});
  Received reduce(int peer, Action action, Place operand, Place to, Received after = {});

  // All channels get the window.
  void setWindow(uint64_t chunks);

  // Its number; none when nothing goes to or comes from the peer.
  std::optional<size_t> channelTo(int peer) const;

 private:
  size_t addChannelTo(int peer);
  Received add(int peer, const Receive& receive);
};

}  // namespace treadle::group
