// Tensors, alone and in what they travel in (bridge/tensor_codec.h), and the options of optimizers
// (optim/option_fields.h). The first byte says which type the message is read as.

#include "tests/fuzz/tensor/message.h"
#include "treadle/tensor/optim/option_fields.h"

namespace treadle::fuzz::tensor_values_fuzz {
namespace {

using Tensors = std::vector<at::Tensor>;

template <class T>
constexpr bool kOneWayToWrite = true;
// A map may come unsorted and with a key twice.
template <class K, class V>
constexpr bool kOneWayToWrite<std::map<K, V>> = false;

template <class T>
void check(const Message& message) {
  checkValue<T>(message, kOneWayToWrite<T>);
}

using Check = void (*)(const Message& message);
template <class... T>
constexpr std::array<Check, sizeof...(T)> checksOf() {
  return {&check<T>...};
}

constexpr auto kChecks =
    checksOf<at::Tensor, std::optional<at::Tensor>, Tensors, std::vector<std::optional<at::Tensor>>,
             std::map<std::string, at::Tensor>, std::pair<std::string, at::Tensor>, std::tuple<int64_t, bool, Tensors>,
             torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
             torch::optim::AdagradOptions, torch::optim::RMSpropOptions>();

void feed(Bytes input) {
  Choices choices(input);
  Check check = kChecks.at(choices.below(kChecks.size()));
  check(messageOf(choices));
}

template <class T>
std::vector<std::byte> seed(uint8_t kind, const T& value) {
  return joined({{std::byte{kind}}, inputOf(Coding().encode(value))});
}

Inputs seeds() {
  at::Tensor x = at::arange(0, 6, at::kFloat).reshape({2, 3});
  Inputs all = {seed(0, at::Tensor()),
                seed(0, at::ones(std::vector<int64_t>(64, 1))),
                seed(0, at::ones({3, 0, 2})),
                seed(0, at::ones({})),
                seed(0, x.t()),
                seed(0, x.to_sparse()),
                seed(0, at::sparse_coo_tensor(at::tensor({1, 1}, at::kLong).view({1, 2}), at::ones({2, 3}), {4, 3})),
                seed(1, std::optional(x)),
                seed(1, std::optional<at::Tensor>()),
                seed(2, Tensors{x, at::Tensor(), x}),
                seed(3, std::vector<std::optional<at::Tensor>>{x, std::nullopt, at::Tensor()}),
                seed(4, std::map<std::string, at::Tensor>{{"weight", x}, {"bias", at::ones({3})}}),
                seed(5, std::pair<std::string, at::Tensor>("x", x)),
                seed(6, std::tuple<int64_t, bool, Tensors>(1, true, {x})),
                seed(7, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
                seed(8, torch::optim::AdamOptions(0.1).betas({0.8, 0.9}).amsgrad(true)),
                seed(9, torch::optim::AdamWOptions(0.1).weight_decay(0.5)),
                seed(10, torch::optim::AdagradOptions(0.1).lr_decay(0.5)),
                seed(11, torch::optim::RMSpropOptions(0.1).centered(true))};
  for (uint8_t type = 0; type < 18; ++type) all.push_back(seed(0, at::ones({2}).to(bridge::scalarType(type))));
  return all;
}

const Fuzzer kTensorValues("tensor_values", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::tensor_values_fuzz
