#pragma once
// Data-parallel training.

#include "treadle/group.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
