#pragma once
// What the tests and the program in victim_program.cc have in common.

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "treadle/core/base/buffer.h"
#include "treadle/core/io/fd.h"

namespace treadle::test {

inline constexpr size_t kVictimBytes = size_t{1} << 20;    // of a buffer that the victim sends or lends
inline constexpr int kVictimBlocks = 16;                   // that it fills, where it lends every second one
inline constexpr size_t kOfferedBytes = size_t{48} << 20;  // of one that it lets the survivor read

inline void sendWithDescriptor(const io::Fd& to, Bytes bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  *rights = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  if (::sendmsg(to.get(), &message, 0) < 0) throw std::runtime_error("the arena cannot be offered");
}

}  // namespace treadle::test
