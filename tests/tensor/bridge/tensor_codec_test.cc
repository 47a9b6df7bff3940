// How tensors travel: every dtype and shape arrives as it was sent, a view sends its own elements only, what cannot
// travel is refused by name, hostile bytes are errors, and nobody sees what others write later.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <treadle/rpc.h>

#include <cstring>
#include <limits>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::tensor_codec_test {
namespace {

at::Tensor echo(const at::Tensor& x) { return x; }
std::map<std::string, std::vector<std::optional<at::Tensor>>> echoMap(
    const std::map<std::string, std::vector<std::optional<at::Tensor>>>& tensors) {
  return tensors;
}
void writeInto(at::Tensor x) { x.fill_(-1); }

Gate* mayRead = nullptr;
double sumWhenOpen(const at::Tensor& x) {
  blocking([] { mayRead->wait(); });
  return x.sum().item<double>();
}

// What libtorch keeps per thread: gradients on, inference mode on, autocast on.
std::vector<bool> threadState() {
  return {c10::GradMode::is_enabled(), c10::InferenceMode::is_enabled(), at::autocast::is_autocast_enabled(at::kCPU)};
}
std::vector<int64_t> threadStateLeaked() {
  std::vector<int64_t> found;
  for (bool on : threadState()) found.push_back(on);
  c10::GradMode::set_enabled(false);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  return found;
}

class TensorCodec : public ::testing::Test {
 protected:
  static Functions functions() {
    Functions functions;
    functions.add<&echo>("echo").add<&echoMap>("echoMap").add<&writeInto>("writeInto");
    return functions.add<&sumWhenOpen>("sumWhenOpen").add<&threadStateLeaked>("threadStateLeaked");
  }

  at::Tensor decode(Bytes payload, std::vector<Buffer> buffers) {
    rpc::Decoder decoder(a.engine().references(), {payload.begin(), payload.end()}, 0, std::move(buffers), {}, nullptr);
    at::Tensor tensor = bridge::decodeTensor(decoder);
    decoder.finish();
    return tensor;
  }
  // Bytes of elements that sending `tensor` takes.
  size_t bytesSent(const at::Tensor& tensor) {
    rpc::Encoder encoder(a.engine().references(), 0, nullptr);
    bridge::encodeTensor(encoder, tensor);
    size_t bytes = 0;
    for (const Buffer& buffer : encoder.buffers()) bytes += buffer.sizeBytes;
    return bytes;
  }
  std::string refusal(const at::Tensor& tensor) {
    return messageOf<ArgumentError>([&] { a.call<&echo>("B", tensor); });
  }

  TensorJob job{{"A", "B"}, functions()};
  Worker& a = job[0];
};

// The same dtype, shape and bits, in memory of its own that is contiguous.
void expectArrived(const at::Tensor& sent, const at::Tensor& came) {
  ASSERT_TRUE(came.defined());
  EXPECT_EQ(came.scalar_type(), sent.scalar_type());
  EXPECT_EQ(came.sizes(), sent.sizes());
  EXPECT_TRUE(came.is_contiguous());
  EXPECT_FALSE(came.is_conj() || came.is_neg() || came.is_view() || came.requires_grad());
  at::Tensor expected = sent.detach().resolve_conj().resolve_neg().contiguous();
  ASSERT_EQ(came.nbytes(), expected.nbytes());
  if (came.nbytes() == 0) return;
  EXPECT_EQ(std::memcmp(came.const_data_ptr(), expected.const_data_ptr(), came.nbytes()), 0) << sent.toString();
  EXPECT_NE(came.const_data_ptr(), expected.const_data_ptr());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(came.const_data_ptr()) % 64, 0u) << "as libtorch aligns its own";
}

constexpr at::ScalarType kTypes[] = {
    at::kByte,     at::kChar,        at::kShort,         at::kInt,          at::kLong,          at::kHalf,
    at::kFloat,    at::kDouble,      at::kComplexHalf,   at::kComplexFloat, at::kComplexDouble, at::kBool,
    at::kBFloat16, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kUInt16,       at::kUInt32,        at::kUInt64,
};

TEST_F(TensorCodec, EveryDtypeArrives) {
  for (at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    EXPECT_EQ(bridge::scalarType(bridge::wireType(type)), type);
    at::Tensor numbers = at::arange(0, 12, at::kFloat).reshape({3, 4}).to(type);
    for (const at::Tensor& sent : {numbers, numbers.select(0, 1).select(0, 2), numbers.narrow(0, 0, 0)})
      expectArrived(sent, a.call<&echo>("B", sent));
  }
}

TEST_F(TensorCodec, ExtremesArriveBitByBit) {
  double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor odd = at::tensor({inf, -inf, nan, -0.0, 5e-324, std::numeric_limits<double>::max()}, at::kDouble);
  expectArrived(odd, a.call<&echo>("B", odd));
  at::Tensor large = at::tensor({std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}, at::kLong);
  expectArrived(large, a.call<&echo>("B", large));
}

TEST_F(TensorCodec, EveryShapeArrives) {
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{},
                                                                             {0},
                                                                             {1},
                                                                             {7, 0, 3},
                                                                             {0, 0},
                                                                             {1, 1, 1, 1, 1, 1, 1, 1},
                                                                             {3, 5, 7},
                                                                             {1000, 1000},
                                                                             std::vector<int64_t>(64, 1)})
    expectArrived(at::ones(sizes), a.call<&echo>("B", at::ones(sizes)));
  EXPECT_FALSE(a.call<&echo>("B", at::Tensor()).defined());
}

TEST_F(TensorCodec, AViewSendsItsElementsOnly) {
  at::Tensor base = at::arange(0, 10'000, at::kDouble).reshape({100, 100});
  at::Tensor complex = at::complex(base, base + 1);
  std::vector<at::Tensor> views = {base.t(),
                                   base.select(1, 3),
                                   base.slice(0, 10, 90, 7),
                                   base.narrow(1, 5, 2),
                                   base.diagonal(),
                                   base.permute({1, 0}),
                                   base.unfold(0, 10, 5),
                                   base.slice(1, 0, 100, 99),
                                   base.flip({0}),
                                   complex.conj(),
                                   at::imag(complex.conj()),
                                   at::real(complex),
                                   complex.conj().t(),
                                   base.as_strided({5}, {3}, 17)};
  for (const at::Tensor& view : views) {
    EXPECT_EQ(bytesSent(view), static_cast<size_t>(view.numel()) * view.element_size());
    expectArrived(view, a.call<&echo>("B", view));
  }
  // Elements that are expanded are sent as often as they are there: the receiver's tensor is an ordinary one.
  at::Tensor expanded = at::ones({3, 1}).expand({3, 1000});
  EXPECT_EQ(bytesSent(expanded), 3u * 1000 * 4);
  expectArrived(expanded, a.call<&echo>("B", expanded));
}

TEST_F(TensorCodec, TensorsTravelInContainers) {
  at::Tensor x = at::rand({3}), y = at::rand({2, 2}, at::kDouble);
  auto came = a.call<&echoMap>("B", std::map<std::string, std::vector<std::optional<at::Tensor>>>{
                                        {"one", {x, std::nullopt, x}}, {"none", {}}, {"two", {at::Tensor(), y}}});
  ASSERT_EQ(came.at("one").size(), 3u);
  expectArrived(x, *came.at("one")[0]);
  EXPECT_FALSE(came.at("one")[1].has_value());
  expectArrived(x, *came.at("one")[2]);
  EXPECT_TRUE(came.at("none").empty());
  EXPECT_FALSE(came.at("two")[0]->defined());
  expectArrived(y, *came.at("two")[1]);
}

TEST_F(TensorCodec, WhetherItRequiresAGradientDoesNotTravel) {
  at::Tensor x = at::rand({3}).requires_grad_();
  expectArrived(x, a.call<&echo>("B", x * 2 - x));
}

TEST_F(TensorCodec, SparseTensorsTravel) {
  at::Tensor indices = at::tensor({0, 2, 2, 1, 0, 3}, at::kLong).view({2, 3}), values = at::rand({3, 5}, at::kDouble);
  const at::Tensor uncoalesced = at::sparse_coo_tensor(at::tensor({1, 1}, at::kLong).view({1, 2}), at::ones({2}), {4});
  for (const at::Tensor& sent :
       {at::sparse_coo_tensor(indices, values, {3, 4, 5}), at::eye(4).to_sparse(), uncoalesced, uncoalesced.coalesce(),
        at::zeros({3, 2}).to_sparse(), at::sparse_coo_tensor({7, 0, 2}, at::TensorOptions(at::kFloat))}) {
    at::Tensor came = a.call<&echo>("B", sent);
    ASSERT_TRUE(came.is_sparse());
    EXPECT_EQ(came.sizes(), sent.sizes());
    EXPECT_EQ(came.is_coalesced(), sent.is_coalesced());
    EXPECT_TRUE(at::equal(came._indices(), sent._indices()));
    EXPECT_TRUE(at::equal(came._values(), sent._values()));
    EXPECT_EQ(came.scalar_type(), sent.scalar_type());
  }
}

TEST_F(TensorCodec, WhatCannotTravelIsRefusedByName) {
  EXPECT_TRUE(contains(refusal(at::eye(3).to_sparse_csr()), "SparseCsr"));
  EXPECT_TRUE(contains(refusal(at::empty({3}, at::TensorOptions(at::kMeta))), "meta"));
  EXPECT_TRUE(contains(refusal(at::quantize_per_tensor(at::ones({3}), 0.1, 0, at::kQInt8)), "quantized"));
  EXPECT_TRUE(contains(refusal(at::ones(std::vector<int64_t>(65, 1))), "64 dimensions"));
  expectArrived(at::ones({2}), a.call<&echo>("B", at::ones({2})));  // the connection goes on
}

// ---- hostile bytes

struct Hostile {
  std::string what;
  uint8_t type;
  std::vector<int64_t> sizes;
  size_t bytes;
  std::string told;
};

TEST_F(TensorCodec, HostileBytesAreErrors) {
  const int64_t huge = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  const uint8_t f32 = bridge::wireType(at::kFloat);
  const std::vector<Hostile> all = {
      {"too few bytes", f32, {2, 3}, 23, "need 24 bytes and 23 came"},
      {"too many bytes", f32, {2, 3}, 25, "need 24 bytes and 25 came"},
      {"bytes for nothing", f32, {0}, 4, "need 0 bytes and 4 came"},
      {"a negative size", f32, {-1}, 4, "negative"},
      {"two negative sizes", f32, {-2, -2}, 16, "negative"},
      {"the least size", f32, {least}, 4, "negative"},
      {"one size too large", f32, {huge}, 4, "too large"},
      {"a product that wraps to little", f32, {int64_t{1} << 31, int64_t{1} << 31, 4}, 0, "too large"},
      {"a product that wraps, and a zero", f32, {huge, huge, 0}, 0, "too large"},
      {"an unknown dtype", static_cast<uint8_t>(std::size(kTypes)), {1}, 4, "unknown dtype 18"},
      {"another unknown dtype", 253, {1}, 4, "unknown dtype 253"},
  };
  for (const Hostile& one : all) {
    SCOPED_TRACE(one.what);
    wire::Writer writer;
    writer.number(one.type);
    writer.number(static_cast<uint8_t>(one.sizes.size()));
    for (int64_t size : one.sizes) writer.number(size);
    std::string why = messageOf<DataError>([&] { decode(writer.bytes(), {allocateBuffer(one.bytes)}); });
    EXPECT_TRUE(contains(why, one.told));
  }
}

TEST_F(TensorCodec, HostileSparseTensorsAreErrors) {
  const auto came = [&](const std::vector<int64_t>& sizes, uint8_t coalesced, const at::Tensor& indices,
                        const at::Tensor& values) {
    rpc::Encoder encoder(a.engine().references(), 0, nullptr);
    encoder.writer().number(uint8_t{254});
    encoder.writer().number(static_cast<uint8_t>(sizes.size()));
    for (int64_t size : sizes) encoder.writer().number(size);
    encoder.writer().number(coalesced);
    bridge::encodeTensor(encoder, indices);
    bridge::encodeTensor(encoder, values);
    return decode(encoder.writer().bytes(), encoder.buffers());
  };
  const auto at = [](std::vector<int64_t> numbers) { return at::tensor(numbers, at::kLong).view({1, -1}); };
  const at::Tensor two = at::ones({2});
  EXPECT_TRUE(came({4}, 1, at({1, 3}), two).is_coalesced());
  messageOf<DataError>([&] { came({4}, 0, at({1, 4}), two); });   // beyond the end
  messageOf<DataError>([&] { came({4}, 0, at({-1, 2}), two); });  // before the beginning
  messageOf<DataError>([&] { came({4}, 1, at({1, 1}), two); });   // one twice, and said to be coalesced
  messageOf<DataError>([&] { came({4}, 1, at({3, 1}), two); });   // not in order
  messageOf<DataError>([&] { came({4}, 2, at({1, 3}), two); });
  messageOf<DataError>([&] { came({4}, 0, at({1, 2, 3}), two); });            // an index without a value
  messageOf<DataError>([&] { came({4, 5}, 0, at({1, 2}), two); });            // values of another shape
  messageOf<DataError>([&] { came({4}, 0, at({1, 2}).to(at::kInt), two); });  // indices of another type
  messageOf<DataError>([&] { came({4}, 0, at::Tensor(), two); });             // no indices
  messageOf<DataError>([&] { came({4}, 0, at({1, 2}), two.to_sparse()); });   // sparse values
  messageOf<DataError>([&] { came({-4}, 0, at({1, 2}), two); });              // a negative size
  // Without sparse dimensions: more elements than any bytes stand for.
  constexpr int64_t kMany = int64_t{1} << 59;
  messageOf<DataError>([&] { came({0}, 0, at::empty({0, kMany}, at::kLong), at::empty({kMany, 0})); });
  messageOf<DataError>([&] { came({int64_t{1} << 62, 4}, 0, at({1}), two); });  // too large to exist
}

TEST_F(TensorCodec, BoolsOfOtherBytesThanZeroAndOneAreErrors) {
  rpc::Encoder encoder(a.engine().references(), 0, nullptr);
  bridge::encodeTensor(encoder, at::ones({3}, at::kBool));
  Buffer bytes = allocateBuffer(3);
  std::fill_n(bytes.data, 3, std::byte{1});
  EXPECT_TRUE(decode(encoder.writer().bytes(), {bytes}).all().item<bool>());
  bytes.data[1] = std::byte{2};
  EXPECT_TRUE(contains(messageOf<DataError>([&] { decode(encoder.writer().bytes(), {bytes}); }), "bool"));
}

TEST_F(TensorCodec, EveryCutOfATensorIsAnError) {
  rpc::Encoder encoder(a.engine().references(), 0, nullptr);
  bridge::encodeTensor(encoder, at::ones({2, 3}));
  Bytes payload = encoder.writer().bytes();
  EXPECT_TRUE(at::equal(decode(payload, encoder.buffers()), at::ones({2, 3})));
  for (size_t size = 0; size < payload.size(); ++size)
    messageOf<DataError>([&] { decode(payload.first(size), encoder.buffers()); });
  EXPECT_TRUE(contains(messageOf<DataError>([&] { decode(payload, {}); }), "fewer buffers"));
  auto twice = encoder.buffers();
  twice.push_back(twice.front());
  EXPECT_TRUE(contains(messageOf<DataError>([&] { decode(payload, twice); }), "more buffers"));
  wire::Writer deep;
  deep.number(uint8_t{0});
  deep.number(uint8_t{65});
  for (int i = 0; i < 65; ++i) deep.number(int64_t{1});
  EXPECT_TRUE(contains(messageOf<DataError>([&] { decode(deep.bytes(), {allocateBuffer(1)}); }), "64 dimensions"));
}

// ---- by value

TEST_F(TensorCodec, TheReceiverNeverSeesALaterWrite) {
  for (int64_t count : {4, 4'000'000}) {
    for (const char* to : {"A", "B"}) {
      Gate gate;
      mayRead = &gate;
      at::Tensor x = at::ones({count});
      auto sum = a.async<&sumWhenOpen>(to, x);
      x.fill_(1000);
      gate.open();
      EXPECT_EQ(sum.wait(), static_cast<double>(count));
    }
  }
  mayRead = nullptr;
}

TEST_F(TensorCodec, TheReceiverMayWriteToWhatItGot) {
  at::Tensor x = at::ones({100});
  for (const char* to : {"A", "B"}) a.call<&writeInto>(to, x);
  EXPECT_TRUE(at::equal(x, at::ones({100})));
}

// What is under way stays what it was when its tensor is given other memory.
TEST_F(TensorCodec, WhatIsSentOutlivesItsTensorsMemory) {
  at::Tensor x = at::ones({1000});
  rpc::Encoder encoder(a.engine().references(), 0, nullptr);
  bridge::encodeTensor(encoder, x);
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(x.storage().getWeakStorageImpl());
  x.set_(at::zeros({1000}));
  EXPECT_FALSE(memory.expired());
  EXPECT_EQ(1.0F, *reinterpret_cast<const float*>(encoder.buffers().at(0).data));
}

// ---- threads

TEST_F(TensorCodec, HandlersStartWithCleanThreadState) {
  c10::GradMode::set_enabled(false);  // the caller's own does not matter
  for (int round = 0; round < 50; ++round)
    EXPECT_EQ(a.call<&threadStateLeaked>("B"), (std::vector<int64_t>{1, 0, 0})) << round;
  c10::GradMode::set_enabled(true);
  for (const char* to : {"A", "B"}) EXPECT_EQ(a.call<&threadStateLeaked>(to), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(threadState(), (std::vector<bool>{true, false, false})) << "nor does a handler change the caller's";
}

// Continuations run on the same threads, and answers are decoded there: none of a handler's inference mode, say.
TEST_F(TensorCodec, NothingElseMeetsAHandlersThreadState) {
  auto leave = [](at::Tensor& answer) {
    auto found = threadState();
    found.push_back(answer.is_inference());
    c10::AutogradState::set_tls_state({false, true, false, true});  // inference mode, unguarded
    return found;
  };
  for (int round = 0; round < 50; ++round)
    EXPECT_EQ(a.async<&echo>("A", at::ones({2})).then(leave).wait(), (std::vector<bool>{true, false, false, false}));
}

}  // namespace
}  // namespace treadle::test::tensor_codec_test
