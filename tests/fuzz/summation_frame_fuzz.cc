// The header of a frame between machines of a summation service. The first byte says whether its check is put right.

#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/wire/crc32c.h"

namespace treadle::fuzz::summation_frame_fuzz {
namespace {

using summation::Frame;
using summation::FrameHeader;
using summation::FrameKind;

void repair(FrameHeader& header) {
  constexpr size_t kCheckAt = 2;
  std::memset(header.data() + kCheckAt, 0, sizeof(uint16_t));
  const auto check = static_cast<uint16_t>(wire::crc32c(header));
  std::memcpy(header.data() + kCheckAt, &check, sizeof check);
}

void feed(Bytes input) {
  Choices choices(input);
  const bool repaired = choices.below(2) == 1;
  const Bytes bytes = choices.rest();
  FrameHeader header{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), header.size()), header.begin());
  if (repaired) repair(header);
  const Result<Frame> frame = summation::parseFrame(header);
  if (!frame.ok()) return;
  const bool hasPiece =
      frame->kind == FrameKind::kAddend || frame->kind == FrameKind::kSum || frame->kind == FrameKind::kVersion;
  promise(frame->sizeBytes <= summation::kMostPieceBytes && (frame->sizeBytes > 0) == hasPiece,
          "a piece is where its kind has one, and within the limit");
  const std::vector<std::byte> piece(frame->sizeBytes, std::byte{1});
  const FrameHeader again = summation::encode(*frame, piece);
  promise(summation::parseFrame(again).ok() && *summation::parseFrame(again) == *frame,
          "a frame that is read is written as it came");
  promise(summation::isWhole(again, piece), "a piece has the checksum that it was sent with");
}

Inputs seeds() {
  Inputs all;
  for (std::byte repaired : {std::byte{0}, std::byte{1}}) {
    for (const Frame& frame : {Frame{FrameKind::kAnnounce, 0, 1, 2, 3}, Frame{FrameKind::kGrant, 0, 1, 2, 3},
                               Frame{FrameKind::kAddend, 100, 4, 5, 6}, Frame{FrameKind::kSum, 65'536, 7, 8, 9},
                               Frame{FrameKind::kHave, 0, 1, 2, 3}, Frame{FrameKind::kRelease, 0, 1, 2, 3},
                               Frame{FrameKind::kVersion, 24, 1, 2, 3}}) {
      const FrameHeader header = summation::encode(frame, std::vector<std::byte>(frame.sizeBytes));
      all.push_back(joined({{repaired}, {header.begin(), header.end()}}));
    }
  }
  return all;
}

const Fuzzer kSummationFrame("summation_frame", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_frame_fuzz
