#pragma once
// The parameters of well-known models, in the order of their modules: what `treadle plan` and benchmarks place without
// having the models. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::cli {

// Bytes of each parameter as float32, of "resnet50", "vgg16", "bert-large", "gpt2" or "transformer". InvalidArgument
// lists these names.
Result<std::vector<uint64_t>> parametersOf(const std::string& model);

}  // namespace treadle::cli
