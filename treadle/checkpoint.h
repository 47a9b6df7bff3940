#pragma once
// Saving and loading tensors as safetensors files: treadle::saveSafetensors(path, {{"weight", w}}) and
// treadle::loadSafetensors(path). Their guarantees and exceptions are documented at their declarations.

#include "treadle/core/base/error.h"
#include "treadle/train/checkpoint/safetensors.h"

namespace treadle {

using checkpoint::loadSafetensors;
using checkpoint::loadSafetensorsMetadata;
using checkpoint::saveSafetensors;

}  // namespace treadle
