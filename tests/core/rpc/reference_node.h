#pragma once
// What a node of the test's network is (reference_network.h), and what nodes send each other.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "treadle/core/rpc/references.h"

namespace treadle::rpc::simulated {

enum class Kind { kNotice, kPass, kMake, kMade, kFetch, kFetched, kCall, kCalled, kCancel };

struct Message {
  Kind kind;
  RefNotice notice = RefNotice::kForkAdded;
  ForkEntry entry;
  size_t number = 0;    // of a fetch or a call: no two have the same
  Status outcome = {};  // of kMade, kFetched and kCalled
  bool held = false;    // nor does anything behind it on its link arrive
};

// What became of a value.
struct Value {
  bool made = false, gone = false;
};

// A fetch, or a call to the owner, that waits at a node for the value, and whose it is.
struct Asked {
  int from;
  size_t asked;  // its own number
  Kind answer;   // what it is answered with
  RefId ref;
  uint64_t number;
};
// A call that was given a reference, and keeps it until it is answered.
struct Calling {
  int to;
  HandlePtr input;
};
// A call that runs once the value is there, which its node fetches.
struct Serving {
  int caller;
  size_t call;
  ForkEntry input;
};

struct Node {
  std::shared_ptr<References> references;
  std::vector<HandlePtr> held;
  std::vector<ForkEntry> toMake;        // requests that run here
  std::vector<ForkEntry> made;          // elsewhere, by requests of this node that are not answered
  std::map<size_t, HandlePtr> fetches;  // and the reference that each is about
  std::map<size_t, Calling> calls;
  std::vector<Serving> toFetch;       // calls that have come
  std::map<size_t, Serving> serving;  // by the number of the fetch
  std::vector<Asked> asked;
  bool dead = false;
  std::vector<bool> knowsDead;
};

}  // namespace treadle::rpc::simulated
