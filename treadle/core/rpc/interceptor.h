#pragma once
// The one seam through which the rooms above join in calls: distributed autograd does, profiling and tracing can. An
// interceptor may add a header field to each message and keeps a hook per message, which codecs of its own types find
// at the encoder and decoder. rpc knows nothing of what it does. One interceptor per worker, set before it joins.

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"

namespace treadle::rpc {

// What an interceptor keeps for one message; codecs get at it by dynamic_cast.
class MessageHook {
 public:
  virtual ~MessageHook() = default;
};

class OutgoingHook : public MessageHook {
 public:
  // Called when all values are encoded: the header field that goes with the message. May throw.
  virtual std::vector<std::byte> field() = 0;
  // The message could not be sent: what was made for it goes.
  virtual void abandon() {}
};

class IncomingHook : public MessageHook {
 public:
  // Called when all values are decoded.
  virtual void decoded() {}
};

// For its lifetime a handler runs on this thread.
class HandlerScope {
 public:
  virtual ~HandlerScope() = default;
};

// While it lives, this thread reads for others: what its own work made current on it is not.
class ReadingScope {
 public:
  virtual ~ReadingScope() = default;
};

// Called on many threads at a time. What it throws on the caller's side is thrown by the call; on the
// callee's side it is the answer.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  // A request of `function` to `rank` is about to be encoded on this thread. May be null.
  virtual std::unique_ptr<OutgoingHook> onRequest(int rank, const std::string& function) = 0;
  // The answer of `function` to a request that came with `request` (null when it came without one) is about to be
  // encoded, on a thread of the pool, which may keep what this makes current there until `afterTask`.
  virtual std::unique_ptr<OutgoingHook> onReply(int rank, const std::string& function, IncomingHook* request) = 0;
  // A message came with this header field. Any thread. Throws DataError for bytes that are none of ours.
  virtual std::shared_ptr<IncomingHook> onArrival(int rank, Bytes field) = 0;
  // A task of the worker's pool (a handler, a continuation) has ended on this thread, which will read and run others.
  // Must not throw.
  virtual void afterTask() {}
  // A handler of `function`, or a stretch of one, for a request that came with `request` (may be null) starts on this
  // thread. May be null.
  virtual std::unique_ptr<HandlerScope> onHandler(const std::string& function, IncomingHook* request) = 0;
  // A thread that waits for an answer, in the middle of its own work, is about to read and decode what comes, whoever
  // it is for. May be null: nothing is current on it.
  virtual std::unique_ptr<ReadingScope> onReading() { return nullptr; }
  // A worker is lost: what is kept for it goes.
  virtual void onLost(int rank) = 0;
};

}  // namespace treadle::rpc
