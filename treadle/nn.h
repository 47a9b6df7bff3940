#pragma once
// Modules that live on other workers: treadle::RemoteModule, and treadle::addModule and declareModule, which
// give module classes the names by which workers make them for each other. And what a module has as a value:
// treadle::stateOf and loadState. treadle::RemoteSubmodule is a RemoteModule as a part of another module.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/module_state.h"
#include "treadle/tensor/nn/remote_module.h"
#include "treadle/tensor/nn/remote_submodule.h"
