#pragma once
// Saves tensors by name to a safetensors file and loads them. The format holds numbers and nothing that could be
// executed, and PyTorch, JAX, Rust and C++ programs share it. Functions without state; any thread may call them, and
// several may save to one path at once (the last one wins, with its whole file). They block on the disk: a handler
// wraps them in blocking().
//
// Element types: bool, uint8/16/32/64, int8/16/32/64, half, bfloat16, float, double, complex<float> and the four 8-bit
// floats (e4m3fn, e5m2 and their fnuz forms). A file cannot hold strides (a view is written as its elements, in
// row-major order), devices (loaded tensors are on the CPU), requires_grad, or memory that two tensors share (they
// become two).

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle::safetensors {

using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

// Writes `tensors` and `metadata` (free text by key) to `path`; the folder must exist. An existing file is replaced in
// one step when the new one is safely on disk, and stays unchanged if anything fails. Throws ArgumentError (undefined
// or sparse tensor, element type that the format lacks, name that is not UTF-8), NotFoundError, StateError or
// ResourceError (the folder is missing, not writable, full); the message names the file.
void saveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Loads the tensors of a file: contiguous, on the CPU. The file is not trusted: any defect is a DataError that names
// the file and the reason. A defect of the header is found before memory is allocated for tensors. Throws
// NotFoundError, StateError or ResourceError for a file that cannot be opened or does not fit into memory.
NamedTensors loadSafetensors(const std::string& path);

// Loads only the file's metadata: reads and checks the header. Throws as loadSafetensors does.
Metadata loadSafetensorsMetadata(const std::string& path);

// The same three functions for use inside Treadle: they return failures and do not throw.
Status trySaveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});
Result<NamedTensors> tryLoadSafetensors(const std::string& path);
Result<Metadata> tryLoadSafetensorsMetadata(const std::string& path);

}  // namespace treadle::safetensors
