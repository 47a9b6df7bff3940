#pragma once
// Remote calls and references with tensors as values. Link treadle::treadle.

#include "treadle/core.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/worker/join.h"
