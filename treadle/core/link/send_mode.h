#pragma once
// What the sender of a message does until its bytes are on their way. A thread that polls or reads never waits,
// whatever the mode: where another one would, its message is refused (send_queue.h).

namespace treadle::link {

enum class SendMode {
  kCapture,  // return as soon as the bytes are captured
  kStay,     // the caller waits for an answer anyway: write from its memory rather than copy
  kUrgent,   // never wait and take room beyond the limit: for what must not be refused, which is little
  kLazy,     // like kCapture, and it may wait for the next message, for 5 ms
  kBatch,    // like kCapture, and others will follow at once or the reactor's thread is about to come by
};

}  // namespace treadle::link
