#pragma once
// Data-parallel training: treadle::DistributedDataParallel wraps a module whose replicas live on the members
// of a treadle::ProcessGroup and averages their gradients during each backward pass, local or distributed.
// treadle::SyncBatchNorm normalizes over the batch of all replicas. CastHook, PowerSgdHook and TopKHook send smaller
// gradients, and LocalSgd averages parameters in place of gradients. AsynchronousParameters let each worker train at
// its own pace. ReplicaSet computes with several replicas in one process. describe(ddp.stats()) shows where the time of
// steps goes.

#include "treadle/group.h"
#include "treadle/train/ddp/asynchronous_parameters.h"
#include "treadle/train/ddp/cast_hook.h"
#include "treadle/train/ddp/clip_grad_norm.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/distributed_sampler.h"
#include "treadle/train/ddp/power_sgd_hook.h"
#include "treadle/train/ddp/replica_set.h"
#include "treadle/train/ddp/sync_batch_norm.h"
#include "treadle/train/ddp/top_k_hook.h"
