#pragma once
// What the sender of a message does until its bytes are on their way.

namespace treadle::link {

enum class SendMode {
  kCapture,  // return as soon as the bytes are captured
  kStay,     // the caller waits for an answer anyway: write from its memory rather than copy
  kUrgent,   // never wait: for heartbeats and acknowledgements, which are few and small
  kLazy,     // like kCapture, and it may wait for the next message, for 5 ms
  kBatch,    // like kCapture, and others will follow at once or the reactor's thread is about to come by
};

}  // namespace treadle::link
