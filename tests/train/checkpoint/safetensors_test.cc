// Tensors through a file and back, and files that are not what they should be.

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "tests/train/checkpoint/temp_folder.h"
#include "treadle/checkpoint.h"

namespace treadle::safetensors::safetensors_test {
namespace {

const std::vector<at::ScalarType> kTypes = {
    at::kBool,   at::kByte,         at::kChar,          at::kShort,       at::kUInt16,          at::kInt,
    at::kUInt32, at::kLong,         at::kUInt64,        at::kHalf,        at::kBFloat16,        at::kFloat,
    at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};

// Random bytes as elements of any type: also patterns (NaN payloads, -0) that a conversion would not keep.
at::Tensor randomBits(at::ScalarType type, std::vector<int64_t> sizes, std::mt19937_64& random) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(type));
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<unsigned char>(type == at::kBool ? random() % 2 : random());
  return tensor;
}

void expectSameBits(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  ASSERT_TRUE(got.is_contiguous()) << what;
  at::Tensor plain = expected.contiguous();
  if (plain.nbytes() == 0) return;  // an empty tensor may have no memory at all
  EXPECT_EQ(std::memcmp(got.const_data_ptr(), plain.const_data_ptr(), plain.nbytes()), 0) << what;
}

TEST(Safetensors, EveryTypeAndShapeComesBackBitForBit) {
  TempFolder folder;
  std::mt19937_64 random(7);
  NamedTensors tensors;
  for (at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{}, {0}, {5}, {3, 0, 2}, {2, 3, 5}}) {
      at::Tensor tensor = randomBits(type, sizes, random);
      tensors.emplace(std::string(c10::toString(type)) + c10::str(tensor.sizes()), tensor);
    }
  }
  Metadata metadata = {{"made by", "a test"}, {"", "empty key"}};
  treadle::saveSafetensors(folder / "all.safetensors", tensors, metadata);
  NamedTensors back = treadle::loadSafetensors(folder / "all.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) expectSameBits(back.at(name), tensor, name);
  EXPECT_EQ(treadle::loadSafetensorsMetadata(folder / "all.safetensors"), metadata);
  EXPECT_EQ(folder.files(), 1u) << "no temporary file is left";
}

TEST(Safetensors, ViewsAreWrittenAsTheirElements) {
  TempFolder folder;
  at::Tensor base = at::arange(24, at::kFloat).reshape({4, 6});
  at::Tensor complex = at::complex(at::arange(3, at::kFloat), at::ones({3}));
  NamedTensors tensors = {{"transposed", base.t()},
                          {"every second", base.slice(1, 0, 6, 2)},
                          {"expanded", at::ones({1}).expand({3, 2})},
                          {"row", base.select(0, 2)},
                          {"conjugated", complex.conj()},
                          {"negated", at::imag(complex.conj())},
                          {"parameter", at::ones({2}, at::TensorOptions().requires_grad(true))}};
  saveSafetensors(folder / "views", tensors);
  NamedTensors back = loadSafetensors(folder / "views");
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(at::equal(back.at(name), tensor.detach().resolve_conj().resolve_neg())) << name;
  EXPECT_FALSE(back.at("parameter").requires_grad());
  EXPECT_LT(std::filesystem::file_size(folder / "views"), 1000u) << "a view costs its own elements, not its storage";
}

TEST(Safetensors, TheSameTensorsMakeTheSameBytes) {
  TempFolder folder;
  NamedTensors tensors = {{"bc", at::ones({3}, at::kByte)}, {"a", at::ones({3}, at::kByte)}, {"c", at::ones({1})}};
  saveSafetensors(folder / "one", tensors, {{"k", "v"}});
  saveSafetensors(folder / "two", tensors, {{"k", "v"}});
  EXPECT_EQ(readFile(folder / "one"), readFile(folder / "two"));
  EXPECT_EQ(
      readFile(folder / "one").substr(8),
      R"({"__metadata__":{"k":"v"},"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"bc":{"dtype":"U8","shape":[3],"data_offsets":[7,10]}})"
      "       " +
          std::string("\x00\x00\x80\x3f\x01\x01\x01\x01\x01\x01", 10));
}

TEST(Safetensors, AnEmptyMapMakesAFileToo) {
  TempFolder folder;
  saveSafetensors(folder / "none", {});
  EXPECT_TRUE(loadSafetensors(folder / "none").empty());
  EXPECT_TRUE(loadSafetensorsMetadata(folder / "none").empty());
}

TEST(Safetensors, RefusesWhatTheFormatCannotHoldAndLeavesTheOldFile) {
  TempFolder folder;
  std::string path = folder / "model";
  saveSafetensors(path, {{"good", at::ones({2})}});
  std::string before = readFile(path);
  NamedTensors wrong = {{"complex double", at::ones({1}, at::kComplexDouble)},
                        {"undefined", at::Tensor()},
                        {"sparse", at::ones({2, 2}).to_sparse()},
                        {"meta", at::ones({2}, at::TensorOptions(at::kMeta))},
                        {"__metadata__", at::ones({1})},
                        {"\xff", at::ones({1})}};
  for (const auto& [name, tensor] : wrong) {
    try {
      saveSafetensors(path, {{"also good", at::ones({9})}, {name, tensor}});
      ADD_FAILURE() << name << " was saved";
    } catch (const ArgumentError& error) {
      std::string message = error.what();
      EXPECT_NE(message.find(path), std::string::npos) << message;
      std::string shown = name == "\xff" ? "\\ufffd" : name;
      EXPECT_NE(message.find("\"" + shown + "\""), std::string::npos) << message;
    }
    EXPECT_EQ(readFile(path), before);
  }
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, PipesAndDevicesAreNotReplaced) {
  TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(saveSafetensors(folder / "pipe", {}), StateError);
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(Safetensors, UnwritableAndUnreadablePathsAreNamed) {
  TempFolder folder;
  EXPECT_THROW(saveSafetensors(folder / "no/such/folder", {}), NotFoundError);
  EXPECT_THROW(saveSafetensors("", {}), ArgumentError);
  EXPECT_THROW(saveSafetensors(folder.path() + "/", {}), ArgumentError);
  EXPECT_THROW(saveSafetensors(folder.path(), {}), StateError) << "a folder has that name";
  EXPECT_THROW(loadSafetensors(folder / "missing"), NotFoundError);
  EXPECT_THROW(loadSafetensors(folder.path()), StateError);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(loadSafetensors(folder / "pipe"), StateError) << "and does not wait for a writer";
  EXPECT_EQ(folder.files(), 1u);
  try {
    loadSafetensors(folder / "missing");
  } catch (const NotFoundError& error) {
    EXPECT_EQ(error.what(),
              "cannot read \"" + (folder / "missing") + "\" as safetensors: cannot open it: No such file or directory");
  }
}

TEST(Safetensors, ADiskThatFillsUpLeavesTheOldFile) {
  TempFolder folder;
  std::string path = folder / "model";
  saveSafetensors(path, {{"good", at::ones({2})}});
  std::string before = readFile(path);
  rlimit old{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = {.rlim_cur = 1000, .rlim_max = old.rlim_max};
  auto handler = std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes stands in for a full disk
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(saveSafetensors(path, {{"large", at::ones({1000})}}), ResourceError);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(readFile(path), before);
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, AReplacedFileKeepsItsPermissions) {
  TempFolder folder;
  std::string path = folder / "model";
  saveSafetensors(path, {});
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  saveSafetensors(path, {{"a", at::ones({1})}});
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

std::string refusal(const std::string& path) {
  try {
    loadSafetensors(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "was loaded";
}

TEST(Safetensors, EveryTruncationIsAnError) {
  TempFolder folder;
  saveSafetensors(folder / "model", {{"a", at::ones({3})}, {"b", at::ones({2}, at::kBool)}});
  std::string bytes = readFile(folder / "model");
  for (size_t length = 0; length < bytes.size(); ++length) {
    writeFile(folder / "cut", bytes.substr(0, length));
    EXPECT_NE(refusal(folder / "cut").find("cut\" as safetensors: "), std::string::npos) << length;
  }
  writeFile(folder / "longer", bytes + "x");
  EXPECT_NE(refusal(folder / "longer").find("1 bytes at its end belong to no tensor"), std::string::npos);
}

TEST(Safetensors, AHugeClaimTakesNoMemory) {
  TempFolder folder;
  writeFile(folder / "huge", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  EXPECT_NE(refusal(folder / "huge").find("announce a header of 9223372036854775807 bytes"), std::string::npos);
}

TEST(Safetensors, BoolsThatAreNoBoolsAreRefused) {
  TempFolder folder;
  saveSafetensors(folder / "model", {{"mask", at::ones({2}, at::kBool)}});
  std::string bytes = readFile(folder / "model");
  bytes.back() = 2;
  writeFile(folder / "model", bytes);
  EXPECT_NE(refusal(folder / "model").find("\"mask\" is BOOL and holds bytes other than 0 and 1"), std::string::npos);
}

// 10,000 damaged files: each is loaded or refused with one of our errors, nothing else happens.
TEST(Safetensors, MutatedFilesNeverCrash) {
  constexpr uint64_t kSeed = 1797;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  TempFolder folder;
  saveSafetensors(folder / "model", {{"w", at::ones({4, 3})}, {"mask", at::ones({5}, at::kBool)}, {"z", at::ones({})}},
                  {{"k", "v"}});
  const std::string good = readFile(folder / "model");
  int refused = 0;
  // Written in place: a new file each time would cost ten times as long.
  int file = open((folder / "mutated").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  for (int round = 0; round < 10'000; ++round) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % (2 * bytes.size()), static_cast<char>(random()));
    ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes.size())), 0);
    try {
      loadSafetensors(folder / "mutated");
    } catch (const DataError& error) {
      ++refused;
      ASSERT_NE(std::string(error.what()).find("mutated"), std::string::npos);
    }
  }
  close(file);
  EXPECT_GT(refused, 1'000);
  EXPECT_LT(refused, 10'000) << "damage to the numbers alone cannot be seen";
}

}  // namespace
}  // namespace treadle::safetensors::safetensors_test
