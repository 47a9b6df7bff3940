#pragma once
// Random numbers of one thread. libtorch's operators draw from a generator of the process, for which threads compete:
// in which order they get their numbers differs from run to run. While a ThreadGenerator lives, all operators of its
// thread that are given no generator draw from this one instead, also those in layers such as Dropout.

#include <ATen/core/Generator.h>

#include <cstdint>

namespace treadle::ddp {

// CPU tensors only. On the thread that made it; they nest.
class [[nodiscard]] ThreadGenerator {
 public:
  explicit ThreadGenerator(uint64_t seed);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

 private:
  at::Generator generator_;
  const at::Generator* const before_;
  const bool wasOn_;
};

}  // namespace treadle::ddp
