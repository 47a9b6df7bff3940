#pragma once
// Messages whose values hold tensors, as inputs of fuzzers: what the values are read from and the buffers beside it.

#include <ATen/ATen.h>

#include <optional>

#include "tests/fuzz/decoded.h"
#include "tests/fuzz/fuzzer.h"
#include "treadle/core/rpc/references.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/bridge/tensor_hooks.h"

namespace treadle::fuzz {

struct Message {
  std::vector<std::byte> payload;
  Inputs buffers;
  bool operator==(const Message&) const = default;
};

// As an input: buffers:u8 bytes-of-buffer:u16 * bytes-of-payload:u16 payload, and the bytes of the buffers. Those that
// the input does not have are 0.
constexpr size_t kMostBuffers = 8, kMostBytes = 2048;
Message messageOf(Choices& choices);
std::vector<std::byte> inputOf(const Message& message);

// What a message's hook is told.
class SeenTensors final : public bridge::IncomingTensorHook {
 public:
  void add(const at::Tensor& tensor) override { tensors.push_back(tensor); }
  std::vector<at::Tensor> tensors;
};
class SentTensors final : public bridge::OutgoingTensorHook {
 public:
  void add(const at::Tensor& tensor) override { tensors.push_back(tensor); }
  std::vector<std::byte> field() override { return {}; }
  std::vector<at::Tensor> tensors;
};

// Turns messages into values and back.
class Coding {
 public:
  rpc::Decoder decoderOf(const Message& message, std::shared_ptr<rpc::IncomingHook> hook = nullptr);

  template <class T>
  std::optional<T> decode(const Message& message, std::shared_ptr<rpc::IncomingHook> hook = nullptr) {
    return decoded<T>(decoderOf(message, std::move(hook)));
  }
  // `given`: how many buffers are handed over rather than copied, when the value is given away.
  template <class T>
  Message encode(const T& value, rpc::OutgoingHook* hook = nullptr, size_t* given = nullptr) {
    rpc::Encoder encoder(*references_, 1, hook);
    rpc::Encoder::Giving giving(encoder, given != nullptr && rpc::kOwnsAll<T>);
    rpc::Codec<T>::encode(encoder, value);
    return written(encoder, given);
  }

 private:
  static Message written(rpc::Encoder& encoder, size_t* given);

  std::shared_ptr<rpc::References> references_ =
      std::make_shared<rpc::References>(0, [](int, rpc::RefNotice, const rpc::ForkEntry&) {});
};

// That a received tensor is what its codec promises, and that each of its elements may be read.
void checkReceived(const at::Tensor& tensor);

// A value of type T in `message`: refused by a DataError, or one that can be written and read again and is the same.
// `oneWayToWrite`: as which bytes it came follows from the value.
template <class T>
void checkValue(const Message& message, bool oneWayToWrite) {
  Coding coding;
  auto seen = std::make_shared<SeenTensors>();
  std::optional<T> value = coding.decode<T>(message, seen);
  for (const at::Tensor& tensor : seen->tensors) checkReceived(tensor);
  if (!value) return;
  SentTensors sent;
  Message again = coding.encode(*value, &sent);
  if (oneWayToWrite) {
    promise(again == message, "a value is written as it came");
    promise(sent.tensors.size() == seen->tensors.size(), "both ends count the same tensors");
  }
  auto seenAgain = std::make_shared<SeenTensors>();
  std::optional<T> twice = coding.decode<T>(again, seenAgain);
  promise(twice && coding.encode(*twice) == again, "a value that is written can be read, and is the same");
  const auto dense = static_cast<size_t>(std::ranges::count_if(
      seenAgain->tensors, [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_sparse(); }));
  seenAgain->tensors.clear();
  size_t given = 0;
  promise(coding.encode(*twice, nullptr, &given) == again, "and is the same when it is given away");
  // Of a sparse tensor its parts are handed out, so that they are not held by the message alone.
  promise(given == (rpc::kOwnsAll<T> ? dense : 0), "what nobody else holds is given, and only that");
}

}  // namespace treadle::fuzz
