#pragma once
// Modules that live on other workers: treadle::RemoteModule. treadle::addModule and declareModule name the module
// classes that workers make on each other. treadle::stateOf and loadState read and write the tensors of a module as one
// value. treadle::RemoteSubmodule makes a RemoteModule a part of another module.

#include "treadle/autograd.h"
#include "treadle/tensor/nn/module_state.h"
#include "treadle/tensor/nn/remote_module.h"
#include "treadle/tensor/nn/remote_submodule.h"
