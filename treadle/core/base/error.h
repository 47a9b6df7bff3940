#pragma once
// The exceptions that public calls throw: one class per status code, so that a program can catch exactly the
// failure it can handle, plus `RemoteError` for what a remote function threw. All derive from `Error`.

#include <stdexcept>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle {

class Error : public std::runtime_error {
 public:
  explicit Error(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}

  Code code() const { return status_.code(); }
  const std::string& worker() const { return status_.worker(); }      // whose failure it is; may be empty
  const std::string& function() const { return status_.function(); }  // what was called; may be empty
  // The workers that it came through, by name, from the one where it happened outwards; none when it happened here.
  const std::vector<std::string>& trail() const { return status_.trail(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// What each means for who catches it:
//
// CancelledError  the call was cancelled, or its worker left the job
// TimeoutError    a time limit passed; whether the work was done is not known
// PeerLostError   `worker()` died, fell silent or left; later calls to it fail alike
// ResourceError   a limit was reached (message size, waiting handlers, memory); the same with less may work
// ArgumentError   the request can never work as it is
// StateError      the request cannot work now: another type, another version, a worker that has left
// NotFoundError   no worker or function of that name
// DataError       bytes that cannot be what their sender meant
// AuthError       a peer did not prove that it knows the job's key
// InternalError   a defect of Treadle
// clang-format off
class CancelledError : public Error { using Error::Error; };
class TimeoutError : public Error { using Error::Error; };
class PeerLostError : public Error { using Error::Error; };
class ResourceError : public Error { using Error::Error; };
class ArgumentError : public Error { using Error::Error; };
class StateError : public Error { using Error::Error; };
class NotFoundError : public Error { using Error::Error; };
class DataError : public Error { using Error::Error; };
class AuthError : public Error { using Error::Error; };
class InternalError : public Error { using Error::Error; };
// clang-format on

// What the called function threw on another worker: its what() and, as `type()`, its type. `code()` is kInternal. A
// function that throws an `Error` of ours is told as that very class instead, with the worker and the code it had: if
// it called a third worker that died, the caller hears who died.
class RemoteError : public Error {
 public:
  using Error::Error;
  const std::string& type() const { return status().remoteType(); }  // C++ type name of the original exception
};

// Throws the exception that belongs to a failed status.
[[noreturn]] void raise(Status status);

inline void throwIfError(Status status) {
  if (!status.ok()) raise(std::move(status));
}

template <class T>
T valueOrThrow(Result<T> result) {
  if (!result.ok()) raise(std::move(result).status());
  return std::move(result).value();
}

// The exception in flight as a status: an `Error` keeps its own, anything else becomes a failure of `function` with
// the type name of what was thrown. Call it inside a catch block only.
Status statusOfCurrentException(const std::string& function);

// A readable name for a mangled C++ type name.
std::string demangled(const char* name);

}  // namespace treadle
