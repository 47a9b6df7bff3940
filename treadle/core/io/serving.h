#pragma once
// Marks the threads that poll the reactor or read a connection. What they read is what others wait for, so they must
// never wait themselves. Every wait of ours begins with an Executor::Blocking, and that refuses on such a thread: no
// code that it runs can wait, whatever it calls. Budget: a thread-local counter.

namespace treadle::io {

// While it lives, this thread polls or reads. Nests.
class Serving {
 public:
  Serving() { ++depth_; }
  ~Serving() { --depth_; }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Whether the calling thread polls or reads.
  static bool here() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace treadle::io
