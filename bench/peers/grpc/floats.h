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

// 200 operations, each into memory of its own.
inline Floats pointwise(Floats tensor) {
  for (int i = 0; i < 100; ++i) {
    Floats product(tensor.count), sum(tensor.count);
    for (size_t j = 0; j < tensor.count; ++j) product.values[j] = tensor.values[j] * 1.0001F;
    for (size_t j = 0; j < tensor.count; ++j) sum.values[j] = product.values[j] + 0.0001F;
    tensor = std::move(sum);
  }
  return tensor;
}
