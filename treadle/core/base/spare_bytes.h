#pragma once
// Memory that a thread is done with, for its next need of the same kind: up to kCount pieces of at most kMostBytes. Of
// the calling thread alone. When the thread ends they go, and what its own objects still do in their destructors is
// given none.

#include <array>
#include <cstddef>
#include <vector>

namespace treadle::base {

// `Use`: a type that stands for who uses it, as each has its own.
template <class Use, size_t kCount, size_t kMostBytes>
class SpareBytes {
 public:
  // Empty, without memory, when there is none. What is in it has no meaning.
  static std::vector<std::byte> take() noexcept {
    std::vector<std::byte> taken;
    if (gone_) return taken;
    for (auto& piece : held_.pieces)
      if (piece.capacity() > 0) {
        taken.swap(piece);
        break;
      }
    return taken;
  }
  static void keep(std::vector<std::byte>&& bytes) noexcept {
    if (gone_ || bytes.capacity() == 0 || bytes.capacity() > kMostBytes) return;
    for (auto& piece : held_.pieces)
      if (piece.capacity() == 0) return piece.swap(bytes);
  }

 private:
  struct Held {
    ~Held() { gone_ = true; }
    std::array<std::vector<std::byte>, kCount> pieces;
  };
  static inline thread_local bool gone_ = false;
  static inline thread_local Held held_;
};

}  // namespace treadle::base
