#pragma once
// Saving and loading tensors as safetensors files (treadle::checkpoint, which computes a part of a model again in place
// of keeping its graph, is in <treadle/autograd.h>): treadle::saveSafetensors(path, {{"weight", w}}) and
// treadle::loadSafetensors(path). Their guarantees and exceptions are documented at their declarations.

#include "treadle/core/base/error.h"
#include "treadle/train/checkpoint/safetensors.h"

namespace treadle {

using safetensors::loadSafetensors;
using safetensors::loadSafetensorsMetadata;
using safetensors::Metadata;
using safetensors::NamedTensors;
using safetensors::saveSafetensors;

}  // namespace treadle
