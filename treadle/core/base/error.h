#pragma once
// The exceptions that public calls throw: one class per status code, so that a program can catch exactly the failure it
// can handle, plus `RemoteError` for exceptions of a remote function. All derive from `Error`.

#include <stdexcept>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle {

class Error : public std::runtime_error {
 public:
  explicit Error(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}

  Code code() const { return status_.code(); }
  const std::string& worker() const { return status_.worker(); }      // the worker that failed; may be empty
  const std::string& function() const { return status_.function(); }  // the called function; may be empty
  // The names of the workers that the failure came through, from its origin outwards; empty when it happened here.
  const std::vector<std::string>& trail() const { return status_.trail(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// Meaning of each class:
//
// CancelledError  the call was cancelled, or its worker left the job
// TimeoutError    a time limit passed; whether the work was done is unknown
// PeerLostError   `worker()` died, fell silent or left; later calls to it fail the same way
// ResourceError   a limit was reached (message size, waiting handlers, memory); a smaller request may work
// ArgumentError   the request can never work as it is
// StateError      the request cannot work now: another type, another version, a worker that has left
// NotFoundError   no worker or function has that name
// DataError       the bytes are corrupt or malformed
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

// An exception of the called function on another worker: its what() and, as `type()`, its type. `code()` is kInternal.
// If the function throws an `Error` of ours, the caller gets that class instead, with the original worker and code: if
// the function called a third worker that died, the caller gets the name of the worker that died.
class RemoteError : public Error {
 public:
  using Error::Error;
  const std::string& type() const { return status().remoteType(); }  // C++ type name of the original exception
};

// Throws the exception class of a failed status.
[[noreturn]] void raise(Status status);

inline void throwIfError(Status status) {
  if (!status.ok()) raise(std::move(status));
}

template <class T>
T valueOrThrow(Result<T> result) {
  if (!result.ok()) raise(std::move(result).status());
  return std::move(result).value();
}

// The current exception as a status: an `Error` keeps its own, anything else becomes a failure of `function` with the
// type name of the exception. Call it only inside a catch block.
Status statusOfCurrentException(const std::string& function);

// A readable name for a mangled C++ type name.
std::string demangled(const char* name);

}  // namespace treadle
