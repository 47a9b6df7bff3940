// The arguments of libtorch's operators (bridge/ivalue_codec.h): one of them when the first byte is even, several when
// it is odd.

#include "tests/fuzz/tensor/message.h"
#include "treadle/tensor/bridge/ivalue_codec.h"

namespace treadle::fuzz::ivalues_fuzz {
namespace {

using Values = std::vector<c10::IValue>;

// A count alone asks for no memory.
void checkLength(const c10::IValue& value, const Message& message) {
  if (value.isList()) promise(value.toListRef().size() <= message.payload.size(), "an element takes a byte or more");
  if (value.isString()) promise(value.toStringRef().size() <= message.payload.size(), "and so does a letter");
}

void feed(Bytes input) {
  Choices choices(input);
  bool several = choices.below(2) == 1;
  Message message = messageOf(choices);
  if (several) return checkValue<Values>(message, true);
  if (std::optional<c10::IValue> value = Coding().decode<c10::IValue>(message)) checkLength(*value, message);
  checkValue<c10::IValue>(message, true);
}

Inputs seeds() {
  at::Tensor x = at::ones({2, 2});
  c10::List<std::optional<at::Tensor>> optionals;
  for (const std::optional<at::Tensor>& one : {std::optional(x), std::optional<at::Tensor>()}) optionals.push_back(one);
  const Values values = {c10::IValue(),
                         x,
                         at::Tensor(),
                         7,
                         0.5,
                         true,
                         "text",
                         c10::complex<double>(1, -1),
                         std::vector<int64_t>{1, 2},
                         std::vector<double>{0.5},
                         c10::List<bool>({true, false}),
                         std::vector<at::Tensor>{x, x},
                         optionals,
                         std::vector<int64_t>{},
                         c10::List<bool>(),
                         std::vector<at::Tensor>{}};
  Inputs all = {joined({{std::byte{1}}, inputOf(Coding().encode(values))})};
  for (const c10::IValue& value : values) all.push_back(joined({{std::byte{0}}, inputOf(Coding().encode(value))}));
  return all;
}

const Fuzzer kIvalues("ivalues", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::ivalues_fuzz
