#pragma once
// Training in mixed precision: treadle::Autocast has a forward pass compute in bfloat16 or float16, and
// treadle::GradScaler scales the loss, so that gradients of float16 computations do not vanish. Both work in plain and
// in distributed passes, with and without DistributedDataParallel.

#include "treadle/group.h"
#include "treadle/optim.h"
#include "treadle/train/ddp/autocast.h"
#include "treadle/train/ddp/grad_scaler.h"
