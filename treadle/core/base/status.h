#pragma once
// How operations inside Treadle report failures: `Status` for an action, `Result<T>` for an action with a value. Both
// are plain values without locks; an OK status is one null pointer, so success costs nothing. At the public API
// `raise()` (error.h) turns a failed status into the exception for its code.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/core/base/check.h"

namespace treadle {

// Ten codes, chosen by what the caller can do about the failure. The values travel on the wire: never renumber.
enum class Code : unsigned char {
  kOk = 0,
  kCancelled = 1,           // the caller withdrew the request
  kDeadlineExceeded = 2,    // a time limit passed; the work may have happened
  kPeerLost = 3,            // the other worker died or left
  kResourceExhausted = 4,   // a limit was reached; try again with less
  kInvalidArgument = 5,     // the request is wrong in any state
  kFailedPrecondition = 6,  // the request is wrong in this state
  kNotFound = 7,            // nothing has that name
  kDataLoss = 8,            // the bytes are corrupt or malformed
  kUnauthenticated = 9,     // the peer could not prove its identity
  kInternal = 10,           // a defect of Treadle
};

// "DeadlineExceeded" for kDeadlineExceeded, and so on.
std::string_view codeName(Code code);

// True for the values of `Code`, including OK. A reader checks this before it trusts a byte.
bool isCode(unsigned char value);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;

  // The worker that was lost or failed, and the function that was called; empty when it does not apply.
  const std::string& worker() const;
  const std::string& function() const;

  // The C++ type name of the exception that the remote function threw; non-empty only for a remote exception.
  const std::string& remoteType() const;

  // The names of the workers that the failure came through, from its origin outwards, without the worker that asks. At
  // most 1,024: a longer trail keeps its beginning.
  const std::vector<std::string>& trail() const;

  // The same failure with more information; no effect on an OK status.
  Status withWorker(std::string worker) &&;
  Status withFunction(std::string function) &&;
  Status withRemoteType(std::string type) &&;
  Status withTrail(std::vector<std::string> trail) &&;
  Status comingThrough(std::string worker) &&;  // adds it at the end of the trail

  // The same failure with context in front: "context: message".
  Status withContext(std::string_view context) const;

  // "PeerLost: message"; "OK" when ok.
  std::string toString() const;

  // Marks a failure here as unimportant; the reason belongs in a comment beside the call.
  void ignore() const {}

 private:
  struct Rep {
    Code code;
    std::string message, worker, function, remoteType;
    std::vector<std::string> trail;
  };
  // Behind one pointer, so that passing an OK status is as cheap as passing a pointer.
  std::unique_ptr<Rep> rep_;
};

// A failure for each code. A message is one sentence: what went wrong, with names and values, and what to do.
Status cancelled(std::string message);
Status deadlineExceeded(std::string message);
Status peerLost(std::string worker, std::string message);
Status resourceExhausted(std::string message);
Status invalidArgument(std::string message);
Status failedPrecondition(std::string message);
Status notFound(std::string message);
Status dataLoss(std::string message);
Status unauthenticated(std::string message);
Status internalError(std::string message);

// A value, or the status that says why there is none. Reading the value of a failed result is a defect of the reader.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit so that `return value;` works
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit, likewise
    TREADLE_CHECK(!status_.ok(), "a Result without a value needs a failed Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return checked(), *value_; }
  const T& value() const& { return checked(), *value_; }
  T&& value() && { return checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void checked() const { TREADLE_CHECK(value_.has_value(), status_.toString()); }

  Status status_;
  std::optional<T> value_;
};

}  // namespace treadle

// Returns from the calling function with the failure of `expression`, which yields a Status.
#define TREADLE_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::treadle::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
