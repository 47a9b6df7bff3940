#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "gtest/gtest.h"
#include "tests/support/readable.h"
#include "treadle/core/base/buffer.h"
#include "treadle/core/io/fd.h"

namespace treadle::test {

// Memory in whose middle a reader stops until `letGoOn`. One at a time; its size is a multiple of two pages.
class SlowMemory {
 public:
  explicit SlowMemory(size_t sizeBytes) : sizeBytes_(sizeBytes) {
    int ends[2];
    EXPECT_EQ(0, ::pipe(ends));
    fault_ = ends[1];
    reached_ = io::Fd(ends[0]);
    EXPECT_EQ(0, ::pipe(ends));
    goOn_ = ends[0];
    let_ = io::Fd(ends[1]);
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, sizeBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(data_, sizeBytes_, std::byte{4});
    rest_ = sizeBytes_ / 2;
    wall_ = data_ + rest_;
    EXPECT_EQ(0, ::mprotect(wall_, rest_, PROT_NONE));
    struct sigaction action{};
    action.sa_handler = &SlowMemory::onFault;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~SlowMemory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(data_, sizeBytes_);
    ::close(fault_);
    ::close(goOn_);
  }

  Buffer buffer() const { return Buffer::borrow(data_, sizeBytes_); }
  void waitForAReader() const { EXPECT_TRUE(readable(reached_.get(), "a reader")); }
  void letGoOn() {
    char bytes[8]{};  // for all who wait
    EXPECT_EQ(8, ::write(let_.get(), bytes, sizeof bytes));
  }

 private:
  static void onFault(int) {
    char byte = 0;
    (void)!::write(fault_, &byte, 1);
    (void)!::read(goOn_, &byte, 1);
    (void)::mprotect(wall_, rest_, PROT_READ);
  }

  static inline int fault_ = -1, goOn_ = -1;
  static inline std::byte* wall_ = nullptr;
  static inline size_t rest_ = 0;
  const size_t sizeBytes_;
  std::byte* data_;
  io::Fd reached_, let_;
  struct sigaction before_{};
};

}  // namespace treadle::test
