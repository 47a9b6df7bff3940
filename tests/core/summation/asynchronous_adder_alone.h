#pragma once
// An AsynchronousAdder by hand: a server for three workers, and two tensors of three pieces.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "treadle/core/summation/asynchronous_adder.h"

namespace treadle::summation::asynchronous_adder_test {

using group::DataType;

inline constexpr Machine kServer = 3;

class AsynchronousAdderAlone : public ::testing::Test {
 protected:
  static constexpr size_t kElements = 2 * kPieceBytes / sizeof(float) + 100;  // three pieces
  static constexpr uint64_t kBytes = kElements * sizeof(float), kPieces = 3;

  Declaration declared(uint64_t staleness = SumMode::kAnyStaleness) const {
    return {{{DataType::kFloat32, kBytes}, {DataType::kFloat32, kBytes}},
            {{0, 0, kBytes, kServer}, {1, 0, kBytes, kServer}},
            3,
            {true, staleness}};
  }

  static Frame frame(FrameKind kind, uint32_t tensor, uint64_t piece, uint64_t round) {
    const bool hasPiece = kind == FrameKind::kAddend || kind == FrameKind::kSum;
    const uint64_t offset = piece * kPieceBytes;
    return {kind, hasPiece ? static_cast<uint32_t>(std::min(kPieceBytes, kBytes - offset)) : 0, tensor, round, offset};
  }
  static Frame announce(uint32_t tensor, uint64_t round = 0) { return frame(FrameKind::kAnnounce, tensor, 0, round); }

  // A worker announces the part, hears that it is granted, and sends all of it.
  static void give(Adder& adder, size_t worker, const std::vector<float>& data, uint64_t round = 0,
                   uint32_t tensor = 0) {
    ASSERT_TRUE(adder.announced(worker, announce(tensor, round)).ok());
    ASSERT_EQ(frame(FrameKind::kGrant, tensor, 0, round), adder.take(worker)->frame);
    sendAll(adder, worker, data, round, tensor);
  }
  static void sendAll(Adder& adder, size_t worker, const std::vector<float>& data, uint64_t round = 0,
                      uint32_t tensor = 0) {
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      const Frame addend = frame(FrameKind::kAddend, tensor, piece, round);
      const Result<MutableBytes> room = adder.roomFor(worker, addend);
      ASSERT_TRUE(room.ok()) << room.status().message();
      std::ranges::copy(std::as_bytes(std::span(data)).subspan(addend.offset, addend.sizeBytes), room->begin());
      adder.arrived(worker, addend);
    }
  }
  // Which data the answer contains that goes to it next.
  static Version versionFor(Adder& adder, size_t worker, uint64_t round = 0, uint32_t tensor = 0) {
    const auto version = adder.take(worker);
    EXPECT_TRUE(version && version->frame == (Frame{FrameKind::kVersion, 24, tensor, round, 0}));
    Version numbers(3);
    if (version) std::ranges::copy(version->piece, bytesOf(numbers).begin());
    if (version) adder.written(worker, *version);
    return numbers;
  }
  // All pieces of its answer.
  static std::vector<float> answerTo(Adder& adder, size_t worker, uint64_t round = 0, uint32_t tensor = 0,
                                     bool hasVersion = true) {
    if (hasVersion) versionFor(adder, worker, round, tensor);
    std::vector<float> answer(kElements);
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      const auto sum = adder.take(worker);
      EXPECT_TRUE(sum && sum->frame == frame(FrameKind::kSum, tensor, piece, round));
      if (!sum) return answer;
      std::ranges::copy(sum->piece, std::as_writable_bytes(std::span(answer)).subspan(sum->frame.offset).begin());
      adder.written(worker, *sum);
    }
    return answer;
  }
  static std::vector<float> all(float value) { return std::vector<float>(kElements, value); }
  static void expectRefusal(const Status& status, const std::string& why) {
    EXPECT_EQ(Code::kDataLoss, status.code());
    EXPECT_NE(std::string::npos, status.message().find(why)) << status.message();
  }

  const Declaration declaration_ = declared(), bounded_ = declared(/*staleness=*/1);
  AsynchronousAdder adder_{declaration_, kServer};
};

}  // namespace treadle::summation::asynchronous_adder_test
