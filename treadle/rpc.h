#pragma once
// Remote calls and references with tensors as values: treadle::join makes the Worker. Its call, async and remote run
// functions on other workers. Link treadle::treadle. All exceptions are subclasses of treadle::Error
// (core/base/error.h).

#include "treadle/core.h"
#include "treadle/tensor/bridge/operators.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/bridge/tensor_memory.h"
#include "treadle/tensor/worker/join.h"
