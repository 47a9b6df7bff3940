#pragma once
// Ends the waits of one thread early. A worker that joins waits for peers through many layers (dials, handshakes,
// messages of the rendezvous), and has to hear at the same time that one of them will never come.
//
// `waitFor` and `waitForRetry` watch the innermost Interruption of their thread, and give up once it has come, as if
// their deadline had passed. So does all that waits through these two. Other threads are not concerned.

#include "treadle/core/base/unique_function.h"

namespace treadle::io {

class Interruption {
 public:
  // A wait calls `hasCome` when `fd` can be read. If that returns false, no wait watches `fd` any more. -1: never
  // comes.
  Interruption(int fd, UniqueFunction<bool()> hasCome) : fd_(fd), hasCome_(std::move(hasCome)), outer_(here_) {
    here_ = this;
  }
  ~Interruption() { here_ = outer_; }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // ---- for waits
  // That of the calling thread; null without one.
  static Interruption* here() { return here_; }
  int fd() const { return fd_; }
  bool came() const { return came_; }
  // Looks at `fd`, which can be read.
  bool look() {
    came_ = came_ || hasCome_();
    if (!came_) fd_ = -1;
    return came_;
  }

 private:
  static inline thread_local Interruption* here_ = nullptr;

  int fd_;
  bool came_ = false;
  UniqueFunction<bool()> hasCome_;
  Interruption* const outer_;
};

}  // namespace treadle::io
