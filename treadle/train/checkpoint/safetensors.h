#pragma once
// Tensors by name to a safetensors file and back: the format that holds numbers and nothing that could be
// executed, and that PyTorch, JAX, Rust and C++ programs share. Functions without state; any thread may call
// them, and several may save to one path at once (the last one wins, whole). They block on the disk: a
// handler wraps them in blocking().
//
// Element types: bool, uint8/16/32/64, int8/16/32/64, half, bfloat16, float, double, complex<float> and the
// four 8-bit floats (e4m3fn, e5m2 and their fnuz forms). What a file cannot hold: strides (a view is written
// as its elements, in row-major order), devices (loaded tensors are on the CPU), requires_grad, and that two
// tensors share memory (they become two).

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle::checkpoint {

using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

// Writes `tensors` and `metadata` (free text by key) to `path`; their folder must exist. A file already there
// is replaced in one step when the new one is safely on disk, and stays as it was if anything fails. Throws
// ArgumentError (undefined or sparse tensor, element type the format lacks, name not UTF-8), NotFoundError,
// StateError or ResourceError (the folder is missing, not writable, full); the message names the file.
void saveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// The tensors of a file: contiguous, on the CPU. The file is not trusted: whatever is wrong with it is a
// DataError that names the file and the reason, found before memory is taken for its tensors. Throws
// NotFoundError, StateError or ResourceError for a file that cannot be opened or does not fit into memory.
NamedTensors loadSafetensors(const std::string& path);

// The file's metadata alone; reads and checks the header only. Throws as loadSafetensors does.
Metadata loadSafetensorsMetadata(const std::string& path);

// The same three inside Treadle.
Status trySaveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});
Result<NamedTensors> tryLoadSafetensors(const std::string& path);
Result<Metadata> tryLoadSafetensorsMetadata(const std::string& path);

}  // namespace treadle::checkpoint
