#pragma once
// Which pages of a mapping are in memory. Of shared memory those count that any process has brought in.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace treadle::test {

// The pages of [data, data + size) that are in memory.
inline size_t residentBytes(const std::byte* data, size_t size) {
  std::vector<unsigned char> pages((size + 4095) / 4096);
  EXPECT_EQ(0, ::mincore(const_cast<std::byte*>(data), size, pages.data()));
  return 4096 * static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

// The same for the whole mapping that `data` lies in.
inline size_t residentAround(const std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2 && begin <= address && address < end)
      return residentBytes(data - (address - begin), end - begin);
  }
  ADD_FAILURE() << "nothing is mapped there";
  return 0;
}

}  // namespace treadle::test
