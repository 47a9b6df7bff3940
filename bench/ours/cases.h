#pragma once
// What is measured: each case is a function of the calling worker, which calls rank 1, and yields the series of its
// repetitions. Run by main.cc in one of two processes. `repetitions` is meant for 40 MB: cases do more of what is
// smaller and less of what is larger.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "bench/ours/measure.h"
#include "treadle/rpc.h"

namespace bench {

constexpr int kServer = 1;
constexpr int64_t kFloatsPerMegabyte = 1 << 18;

using Case = std::vector<Series> (*)(treadle::Worker& worker, int repetitions);

// By name. Cases of calls, tensors, memory and autograd have a file each.
using Cases = std::map<std::string, Case>;
void addCallCases(Cases& cases);
void addTensorCases(Cases& cases);
void addMemoryCases(Cases& cases);
void addWarmMemoryCases(Cases& cases);
void addAutogradCases(Cases& cases);

// What the other worker offers.
treadle::Functions served();

// The functions that are called.
void nothing();
at::Tensor identity(at::Tensor tensor);
at::Tensor pointwise(at::Tensor tensor);                   // 200 operations, each into memory of its own
int64_t fetched(const treadle::RRef<at::Tensor>& tensor);  // reads the caller's tensor by reference
int64_t residentBytes();                                   // of the process that it runs in
int64_t peakBytes();                                       // the most that was resident since resetPeak
void resetPeak();
at::Tensor secondLayer(const at::Tensor& hidden);  // a Layer of the process that it runs in
at::Tensor twice(const at::Tensor& tensor);

// A linear layer of the table in the paper.
struct Layer {
  static constexpr int64_t kWidth = 1000;
  Layer();
  at::Tensor forward(const at::Tensor& input) const;
  at::Tensor weight, bias;
};

// Fewer runs of what takes long.
inline int few(int repetitions) { return std::max(3, repetitions / 4); }

}  // namespace bench
