#pragma once
// `treadle plan --workers N --servers K`: what each machine of a summation service would sum and move, and how long
// that takes beside a ring and parameter servers. As a table with bars, or JSON. Pure.

#include <string>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/part_placement.h"

namespace treadle::cli {

inline constexpr uint64_t kMostBytesOfSum = summation::Declaration::kMostBytes;  // as of a service

struct ServicePlan {
  summation::Bandwidths bandwidths = summation::Bandwidths::even(4, 0, 1.18e9);
  std::vector<uint64_t> tensorBytes;
};

// As typed; an empty text was not given.
struct ServiceChoice {
  std::string workers, servers, bandwidth, serverBandwidth, bytes, model, tensors;
  std::string explain;  // a folder: the times of a run, and no plan

  // Whether an option was given that asks for this plan. The bandwidth alone does not.
  bool given() const { return !(workers + servers + serverBandwidth + bytes + model + tensors).empty(); }
};

// InvalidArgument names the option.
Result<uint64_t> bytesOfSum(const std::string& text);  // of --bytes; an empty text stands for the default
Result<summation::Bandwidths> readBandwidths(const ServiceChoice& choice);
// The same; the file of `tensors` is read.
Result<ServicePlan> readServicePlan(const ServiceChoice& choice);

std::string serviceTable(const ServicePlan& plan);
std::string serviceJson(const ServicePlan& plan);

}  // namespace treadle::cli
