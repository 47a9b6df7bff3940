#pragma once
// Modules that live on other workers: treadle::RemoteModule, and treadle::addModule and declareModule, which
// give module classes the names by which workers make them for each other.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/remote_module.h"
