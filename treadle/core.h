#pragma once
// Treadle without tensors: join a job, call functions on its workers, hold references to their values, run collective
// operations, sum on other machines. Link treadle::core. With tensors: <treadle/rpc.h>.

#include "treadle/core/base/error.h"
#include "treadle/core/group/group.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/worker/worker.h"
