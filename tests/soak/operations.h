#pragma once
// What one worker of a soak does to the others, one small scenario each: it makes calls and references, says what must
// come of them, and leaves nothing behind but what it puts on a shelf. Throws Wrong for anything else, and passes the
// errors on that it did not provoke itself: whether those are fair, the traffic judges. On a client's own thread.

#include "tests/soak/client.h"

namespace treadle::soak {

struct Operation {
  const char* name;
  void (*run)(Client&);
  int weight;  // how often it comes, compared with the others
};

// By kind of what they need: the ones with blobs are left out where buffers are not safe from what is done to the
// links, those with groups where a member may not know all others, or links fail.
std::vector<Operation> callOperations();
std::vector<Operation> failureOperations();
std::vector<Operation> referenceOperations();
std::vector<Operation> blobOperations();
std::vector<Operation> groupOperations();

// What `f` must throw, on the way to be looked at.
template <class E, class F>
E thrownBy(F f, const std::string& what) {
  try {
    f();
  } catch (const E& error) {
    return error;
  }
  throw Wrong(what + " threw nothing");
}

inline void expectPart(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) throw Wrong("'" + text + "' lacks '" + part + "'");
}

// A call's time was up before its callee had room for it (JoinOptions::maxInFlightBytes).
inline void expectNoRoom(const ResourceError& error) { expectPart(error.what(), "waited until its time was up"); }

}  // namespace treadle::soak
