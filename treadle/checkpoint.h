#pragma once
// Saving and loading tensors as safetensors files: treadle::saveSafetensors(path, {{"weight", w}}) and
// treadle::loadSafetensors(path). What they promise and throw stands beside their declarations.

#include "treadle/core/base/error.h"
#include "treadle/train/checkpoint/safetensors.h"

namespace treadle {

using checkpoint::loadSafetensors;
using checkpoint::loadSafetensorsMetadata;
using checkpoint::saveSafetensors;

}  // namespace treadle
