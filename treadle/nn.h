#pragma once
// Modules that live on other workers.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/remote_module.h"
