#include "tests/fuzz/tensor/message.h"

#include <new>

namespace treadle::fuzz {
namespace {

// Exactly as long as its contents, so that the sanitizer sees a read behind them.
class Block final : public Memory {
 public:
  explicit Block(const std::vector<std::byte>& contents) : data(::operator new(contents.size(), kAlignment)) {
    if (!contents.empty()) std::memcpy(data, contents.data(), contents.size());
  }
  ~Block() override { ::operator delete(data, kAlignment); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* const data;

 private:
  static constexpr std::align_val_t kAlignment{64};  // what a received buffer has
};

Buffer bufferOf(const std::vector<std::byte>& contents) {
  auto block = std::make_shared<Block>(contents);
  auto* data = static_cast<std::byte*>(block->data);
  return {data, contents.size(), std::move(block)};
}

void checkPlace(const at::Tensor& tensor) {
  size_t elements = 1;
  for (int64_t size : tensor.sizes()) {
    promise(size >= 0, "sizes are not negative");
    if (__builtin_mul_overflow(elements, static_cast<size_t>(size), &elements)) elements = 0;
  }
  promise(elements == static_cast<size_t>(tensor.numel()), "the sizes are those of its elements");
  promise(tensor.is_contiguous() && tensor.storage_offset() == 0, "elements lie in a row, from the beginning");
  promise(tensor.storage().nbytes() == tensor.nbytes() && tensor.nbytes() == elements * tensor.element_size(),
          "its memory is as large as its elements");
}

// What kernels trust: every index lies within the sizes.
void checkReceivedSparse(const at::Tensor& tensor) {
  promise(!tensor.requires_grad() && !tensor.is_view(), "a tensor has no history");
  const at::Tensor indices = tensor._indices(), values = tensor._values();
  promise(tensor.sparse_dim() == indices.size(0) && indices.size(1) == values.size(0), "an index for each value");
  promise(tensor.sparse_dim() + values.dim() - 1 == tensor.dim(), "the values have the other dimensions");
  for (int64_t dimension = 0; dimension < indices.size(0); ++dimension)
    for (int64_t i = 0; i < indices.size(1); ++i) {
      const auto index = indices[dimension][i].item<int64_t>();
      promise(index >= 0 && index < tensor.size(dimension), "an index lies within the sizes");
    }
  checkPlace(values);
}

}  // namespace

Message messageOf(Choices& choices) {
  Message message;
  message.buffers.resize(choices.below(kMostBuffers + 1));
  for (auto& buffer : message.buffers) buffer.resize(choices.number<uint16_t>() % (kMostBytes + 1));
  Bytes payload = choices.bytes(choices.number<uint16_t>() % (kMostBytes + 1));
  message.payload.assign(payload.begin(), payload.end());
  for (auto& buffer : message.buffers) {
    Bytes contents = choices.bytes(buffer.size());
    if (!contents.empty()) std::memcpy(buffer.data(), contents.data(), contents.size());
  }
  return message;
}

std::vector<std::byte> inputOf(const Message& message) {
  promise(message.buffers.size() <= kMostBuffers, "a seed is small");
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(message.buffers.size()));
  for (const auto& buffer : message.buffers) writer.number(static_cast<uint16_t>(buffer.size()));
  writer.number(static_cast<uint16_t>(message.payload.size()));
  return joined({writer.take(), message.payload, joined(message.buffers)});
}

rpc::Decoder Coding::decoderOf(const Message& message, std::shared_ptr<rpc::IncomingHook> hook) {
  std::vector<Buffer> buffers;
  for (const auto& contents : message.buffers) buffers.push_back(bufferOf(contents));
  return {*references_, message.payload, 0, std::move(buffers), {}, std::move(hook)};
}

Message Coding::written(rpc::Encoder& encoder, size_t* given) {
  Message message{encoder.writer().take(), {}};
  for (const Buffer& buffer : encoder.buffers()) {
    message.buffers.emplace_back(buffer.bytes().begin(), buffer.bytes().end());
    if (given != nullptr && buffer.given) ++*given;
  }
  return message;
}

void checkReceived(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.is_sparse()) return checkReceivedSparse(tensor);
  promise(tensor.layout() == at::kStrided && tensor.device().is_cpu(), "a tensor is dense and on the CPU");
  promise(!tensor.requires_grad() && !tensor.is_view(), "a tensor has no history");
  promise(tensor.dim() <= 64, "a tensor has no more dimensions than libtorch bears");
  checkPlace(tensor);
  Bytes bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  std::byte all{};
  for (std::byte each : bytes) all |= each;
  promise(tensor.scalar_type() != at::kBool || all <= std::byte{1}, "bools are 0 and 1");
}

}  // namespace treadle::fuzz
