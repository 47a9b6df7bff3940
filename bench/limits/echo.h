#pragma once
// What two processes need at the least for a message there and back: a blocking write and a blocking read on each side.
// The other side is a process of its own, which reads the whole message before it writes it back. One thread.

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace bench {

class Echo {
 public:
  enum class Way { kUnix, kTcp };  // TCP over the loopback, with TCP_NODELAY

  // Throws std::system_error.
  Echo(Way way, size_t bytes);
  ~Echo();
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  // `message` has as many bytes as were agreed; what comes back is kept here.
  void roundTrip(const void* message);

  // For main, before anything else: when this process was started as the other side, serves it and returns true.
  static bool serve(int argc, char** argv);

 private:
  int socket_ = -1;
  pid_t other_ = -1;
  std::vector<char> answer_;
};

}  // namespace bench
