// The header field of a message within a context (docs/protocol/autograd.md): bytes of a peer that nobody vouches for.

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "treadle/core/wire/writer.h"
#include "treadle/tensor/autograd/interceptor.h"

#include <thread>

namespace treadle::autograd::interceptor_test {
namespace {

using test::contains;
using test::messageOf;

constexpr int64_t kContext = (int64_t{1} << 40) | 1;  // of worker 1

std::vector<std::byte> field(uint8_t mode, const std::vector<uint32_t>& indexes, int64_t message = 3) {
  wire::Writer writer;
  writer.number(kContext);
  writer.number(mode);
  writer.number(static_cast<uint32_t>(indexes.size()));
  for (uint32_t index : indexes) writer.number(index);
  if (indexes.empty()) return writer.take();
  writer.number(message);
  Lineage lineage;
  lineage.add(0, 7);
  if (mode == 1) lineage.write(writer);
  return writer.take();
}

TEST(HeaderField, OfAnotherShapeIsRefused) {
  for (uint8_t mode : {0, 1}) {
    AutogradInterceptor interceptor(0);
    const std::vector<std::byte> whole = field(mode, {0, 2});
    for (size_t size = 0; size < whole.size(); ++size)
      messageOf<DataError>([&] { interceptor.onArrival(1, Bytes(whole).first(size)); });
    EXPECT_EQ(interceptor.contexts().open(), 0U) << "what is refused makes no context";
    EXPECT_NE(interceptor.onArrival(1, whole), nullptr);
    EXPECT_NE(interceptor.onArrival(1, field(mode, {})), nullptr);
  }
}

TEST(HeaderField, NamesAModeAndANumberThatAMessageMayHave) {
  AutogradInterceptor interceptor(0);
  messageOf<DataError>([&] { interceptor.onArrival(1, field(2, {})); });
  for (int64_t number : {int64_t{-1}, Lineage::kNumbers})
    messageOf<DataError>([&] { interceptor.onArrival(1, field(0, {0}, number)); });
  EXPECT_EQ(interceptor.contexts().open(), 0U);
  EXPECT_NE(interceptor.onArrival(1, field(0, {})), nullptr);
  EXPECT_TRUE(contains(messageOf<DataError>([&] { interceptor.onArrival(1, field(1, {})); }), "mode"));
}

// A sender names each tensor once, in order. A receiver keeps the shape of each one that is named, which takes far more
// than the 4 bytes of its number.
TEST(HeaderField, NamesEachTensorOnceInOrder) {
  AutogradInterceptor interceptor(0);
  for (const std::vector<uint32_t>& indexes : {std::vector<uint32_t>{0, 0}, {3, 2}, {0, 1, 1}}) {
    auto arrive = [&] { interceptor.onArrival(1, field(0, indexes)); };
    EXPECT_TRUE(contains(messageOf<DataError>(arrive), "tensor"));
  }
  EXPECT_EQ(interceptor.contexts().open(), 0U);
}

TEST(Reading, ForOthersHasNoContextOfTheThreadThatReads) {
  AutogradInterceptor interceptor(0);
  EXPECT_EQ(interceptor.onReading(), nullptr) << "nothing is current";
  const ContextPtr context = interceptor.contexts().create();
  const CurrentContext current(interceptor, context);
  {
    auto reading = interceptor.onReading();
    EXPECT_EQ(interceptor.current(), nullptr);
  }
  EXPECT_EQ(interceptor.current(), context);
}

class CurrentContexts : public ::testing::Test {
 protected:
  std::unique_ptr<CurrentContext> enter(const ContextPtr& context) {
    return std::make_unique<CurrentContext>(interceptor, context);
  }

  AutogradInterceptor interceptor{0};
  const ContextPtr outer = interceptor.contexts().create(), first = interceptor.contexts().create(),
                   second = interceptor.contexts().create();
};

// As `context = std::make_unique<AutogradContext>(worker)` in a loop ends the old one after the new one was made.
TEST_F(CurrentContexts, MayBeReplacedByTheNext) {
  const auto around = enter(outer);
  const auto uses = first.use_count();
  auto current = enter(first);
  current = enter(second);
  EXPECT_EQ(interceptor.current(), second);
  EXPECT_EQ(first.use_count(), uses) << "what is over is kept";
  current = enter(first);
  EXPECT_EQ(interceptor.current(), first);
  current.reset();
  EXPECT_EQ(interceptor.current(), outer);
}

TEST_F(CurrentContexts, EndInAnyOrder) {
  auto one = enter(outer), none = enter(nullptr), two = enter(first), three = enter(second);
  two.reset();
  one.reset();
  EXPECT_EQ(interceptor.current(), second);
  three.reset();
  EXPECT_EQ(interceptor.current(), nullptr);
  two = enter(first);
  none.reset();
  EXPECT_EQ(interceptor.current(), first);
  two.reset();
  EXPECT_EQ(interceptor.current(), nullptr);
}

// Also below one that goes on. What they keep goes when their own thread makes a context.
TEST_F(CurrentContexts, ThatEndOnAnotherThreadAreOverOnTheirOwn) {
  const auto around = enter(outer);
  const auto uses = first.use_count();
  auto below = enter(first), current = enter(first);
  std::thread([&] {
    const auto ofThatThread = enter(second);
    below.reset();
    EXPECT_EQ(interceptor.current(), second);
  }).join();
  EXPECT_EQ(interceptor.current(), first);
  std::thread([&] { current.reset(); }).join();
  const auto next = enter(second);
  EXPECT_EQ(first.use_count(), uses);
}

}  // namespace
}  // namespace treadle::autograd::interceptor_test
