// The C++ side of interop.py: `describe FILE` prints what Treadle sees in a file, as JSON; `copy FROM TO`
// loads a file and saves it again.

#include <ATen/ATen.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "treadle/checkpoint.h"

namespace {

// Elements in row-major order, as Python's tolist() of the flattened tensor gives them; complex numbers as
// pairs.
nlohmann::json valuesOf(const at::Tensor& tensor) {
  if (tensor.is_complex()) return valuesOf(at::view_as_real(tensor));
  nlohmann::json values = nlohmann::json::array();
  at::Tensor flat = tensor.reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) {
    c10::Scalar value = flat.select(0, i).item();
    if (tensor.scalar_type() == at::kUInt64) {
      values.push_back(value.toUInt64());
    } else if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
      values.push_back(value.toLong());
    } else {
      values.push_back(value.toDouble());
    }
  }
  return values;
}

int run(const std::string& command, const std::string& path, const std::string& target) {
  treadle::safetensors::NamedTensors tensors = treadle::loadSafetensors(path);
  treadle::safetensors::Metadata metadata = treadle::loadSafetensorsMetadata(path);
  if (command == "copy") {
    treadle::saveSafetensors(target, tensors, metadata);
    return 0;
  }
  nlohmann::json described = {{"metadata", metadata}, {"tensors", nlohmann::json::object()}};
  for (const auto& [name, tensor] : tensors) {
    described["tensors"][name] = {
        {"dtype", c10::toString(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"values", valuesOf(tensor)}};
  }
  std::puts(described.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fputs("usage: interop_program describe FILE | copy FROM TO\n", stderr);
    return 2;
  }
  try {
    return run(argv[1], argv[2], argc == 4 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
