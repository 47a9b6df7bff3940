// The header of a safetensors file (train/checkpoint/header.h), which needs no tensors. The first byte is the size of
// the data behind the header, the rest is the header.

#include "tests/fuzz/fuzzer.h"
#include "treadle/train/checkpoint/header.h"

namespace treadle::fuzz::safetensors_fuzz {
namespace {

void feed(Bytes input) {
  Choices choices(input);
  uint64_t dataBytes = choices.number<uint8_t>();
  std::string json = choices.text(input.size());
  Result<safetensors::Header> header = safetensors::parseHeader(json, dataBytes);
  if (!header.ok()) return;
  uint64_t covered = 0;
  for (const safetensors::TensorEntry& tensor : header->tensors) {
    promise(tensor.begin == covered && tensor.end >= tensor.begin, "tensors follow each other without a gap");
    covered = tensor.end;
  }
  promise(covered == dataBytes, "all data belongs to a tensor");
  Result<std::string> text = safetensors::formatHeader(*header);
  promise(text.ok(), "what was read can be written");
  promise(safetensors::parseHeader(text->substr(safetensors::kLengthBytes), dataBytes).ok(), "and read again");
}

Inputs seeds() {
  return {bytesOf(R"(0{"a":{"dtype":"F32","shape":[2,6],"data_offsets":[0,48]}})"),
          bytesOf(R"(0{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[48],"data_offsets":[0,48]}})")};
}

const Fuzzer kSafetensors("safetensors", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::safetensors_fuzz
