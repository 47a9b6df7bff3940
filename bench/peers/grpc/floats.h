#pragma once
// A tensor of float32 for the gRPC programs, which are built without torch: memory that is not written when it is made,
// as libtorch's.

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>

struct Floats {
  explicit Floats(size_t count) : count(count), values(new float[count]) {}

  size_t bytes() const { return count * sizeof(float); }
  void fill() {
    static std::minstd_rand random;
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(random());
  }

  size_t count;
  std::unique_ptr<float[]> values;
};
