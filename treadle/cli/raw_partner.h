#pragma once
// What two processes need at the least for a message there and back: a blocking write and a blocking read on each side,
// without any library. The other side is a process of its own, which reads the whole message before it writes it back;
// it ends with its socket or with this process. One thread.

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/io/process.h"

namespace treadle::cli {

class RawPartner {
 public:
  // `overUnix`: a UNIX socket, else TCP over the loopback. Messages have so many bytes. A partner that takes longer
  // than `limit` for one is an error of `roundTrip`.
  static Result<RawPartner> start(bool overUnix, size_t messageBytes, Duration limit);

  Status roundTrip(Bytes message, MutableBytes answer);

  // The other side, in the process that `start` has started with these arguments.
  static int serve(int socket, size_t messageBytes);
  static constexpr const char* kOption = "--raw-partner";  // SOCKET:BYTES

 private:
  RawPartner(io::Fd socket, io::Process process) : socket_(std::move(socket)), process_(std::move(process)) {}

  io::Fd socket_;
  io::Process process_;
};

}  // namespace treadle::cli
