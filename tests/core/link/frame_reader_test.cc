#include "treadle/core/link/frame_reader.h"

#include <sys/socket.h>

#include "tests/support/bytes.h"
#include "tests/support/tls_pair.h"
#include "treadle/core/io/socket.h"

namespace treadle::link::frame_reader_test {
namespace {

using wire::FrameKind;

struct Sent {
  uint8_t subject;
  std::vector<std::byte> payload;
  std::vector<std::vector<std::byte>> buffers;
};

Sent randomFrame(test::Random& random, size_t upTo) {
  Sent sent{static_cast<uint8_t>(random()), test::randomBytes(random, test::pick(random, upTo)), {}};
  for (uint64_t left = test::pick(random, 4); left > 0; --left) {
    // Empty buffers are common: a tensor without elements.
    size_t size = test::pick(random, 3) == 0 ? 0 : test::pick(random, upTo);
    sent.buffers.push_back(test::randomBytes(random, size));
  }
  return sent;
}

std::vector<std::byte> streamOf(const std::vector<Sent>& frames) {
  std::vector<std::byte> stream;
  for (const Sent& sent : frames) {
    std::vector<wire::BufferEntry> buffers;
    for (const auto& buffer : sent.buffers) buffers.push_back({buffer.size()});
    auto front = wire::frameFront(FrameKind::kMessage, sent.subject, sent.payload, buffers);
    stream.insert(stream.end(), front.begin(), front.end());
    for (const auto& buffer : sent.buffers) stream.insert(stream.end(), buffer.begin(), buffer.end());
  }
  return stream;
}

void expectSame(const std::vector<Sent>& sent, const std::vector<Frame>& got) {
  ASSERT_EQ(sent.size(), got.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].subject, got[i].header.subject);
    EXPECT_EQ(sent[i].payload, got[i].payload);
    ASSERT_EQ(sent[i].buffers.size(), got[i].buffers.size());
    for (size_t b = 0; b < sent[i].buffers.size(); ++b) {
      Bytes bytes = got[i].buffers[b].bytes();
      EXPECT_TRUE(test::same(bytes, sent[i].buffers[b]));
      EXPECT_FALSE(got[i].buffers[b].borrowed());
    }
  }
}

// A socket, and what a reader makes of it.
class Stream {
 public:
  explicit Stream(wire::FrameLimits limits = {})
      : reader_(limits), onFrame_([this](Frame frame) { frames.push_back(std::move(frame)); }) {
    int ends[2];
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
    writing_ = io::Fd(ends[0]);
    reading_ = io::Stream(io::Fd(ends[1]));
  }

  // Writes and reads in turn until all is through.
  Status feed(Bytes bytes) {
    while (!bytes.empty()) {
      ssize_t written = ::write(writing_.get(), bytes.data(), bytes.size());
      if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
      TREADLE_RETURN_IF_ERROR(readAll());
    }
    return {};
  }
  Status readAll() {
    for (;;) {
      Result<bool> got = reader_.readFrom(reading_, onFrame_);
      if (!got.ok()) return got.status();
      if (!*got) return {};
    }
  }
  void end() { writing_.reset(); }

  std::vector<Frame> frames;

 private:
  io::Fd writing_;
  io::Stream reading_;
  FrameReader reader_;
  UniqueFunction<void(Frame)> onFrame_;
};

TEST(FrameReader, makesTheSameFramesOfEverySplitOfTheBytes) {
  test::Random random(1);
  std::vector<Sent> sent;
  for (int i = 0; i < 4; ++i) sent.push_back(randomFrame(random, 40));
  std::vector<std::byte> stream = streamOf(sent);
  for (size_t split = 0; split <= stream.size(); ++split) {
    SCOPED_TRACE("split at " + std::to_string(split));
    Stream two;
    ASSERT_TRUE(two.feed(Bytes(stream).first(split)).ok());
    ASSERT_TRUE(two.feed(Bytes(stream).subspan(split)).ok());
    expectSame(sent, two.frames);
  }
  Stream single;
  for (size_t at = 0; at < stream.size(); ++at) ASSERT_TRUE(single.feed(Bytes(stream).subspan(at, 1)).ok());
  expectSame(sent, single.frames);
}

// Payloads and buffers larger than its read buffer (64 KiB) and than one turn (1 MiB), in pieces of any size.
TEST(FrameReader, makesTheSameFramesOfRandomPieces) {
  test::forSeeds(15, [](test::Random& random) {
    std::vector<Sent> sent;
    for (int i = 0; i < 12; ++i) {
      size_t upTo = size_t{1} << (4 + test::pick(random, 18));
      sent.push_back(randomFrame(random, upTo));
    }
    std::vector<std::byte> stream = streamOf(sent);
    Stream pieces;
    for (Bytes left = stream; !left.empty();) {
      size_t size = std::min<size_t>(left.size(), 1 + test::pick(random, size_t{1} << (1 + test::pick(random, 19))));
      ASSERT_TRUE(pieces.feed(left.first(size)).ok());
      left = left.subspan(size);
    }
    expectSame(sent, pieces.frames);
  });
}

TEST(FrameReader, tellsTheEndOfTheStreamAlsoInTheMiddleOfAFrame) {
  test::Random random(2);
  std::vector<std::byte> stream = streamOf({randomFrame(random, 30), {1, {}, {test::randomBytes(random, 50)}}});
  for (size_t cut : {size_t{0}, size_t{10}, stream.size() - 60, stream.size() - 20, stream.size()}) {
    Stream broken;
    ASSERT_TRUE(broken.feed(Bytes(stream).first(cut)).ok());
    broken.end();
    EXPECT_EQ(Code::kPeerLost, broken.readAll().code()) << cut;
    EXPECT_EQ(cut == stream.size() ? 2U : cut >= stream.size() - 90 ? 1U : 0U, broken.frames.size()) << cut;
  }
}

TEST(FrameReader, refusesAFrameOverItsLimitsBeforeItsBytesCome) {
  std::vector<std::byte> payload(101);
  std::vector<std::byte> front = wire::frameFront(FrameKind::kMessage, 1, payload, {});
  Stream limited({.payloadBytes = 100, .bufferBytes = 0});
  EXPECT_EQ(Code::kResourceExhausted, limited.feed(Bytes(front).first(wire::kHeaderBytes)).code());
  EXPECT_TRUE(limited.frames.empty());
}

TEST(FrameReader, handsOverTheFramesInFrontOfDamageAndNothingAfter) {
  test::Random random(3);
  std::vector<std::byte> stream =
      streamOf({{7, test::randomBytes(random, 20), {}}, {8, test::randomBytes(random, 20), {}}});
  stream[stream.size() - 1] ^= std::byte{1};
  Stream damaged;
  EXPECT_EQ(Code::kDataLoss, damaged.feed(stream).code());
  ASSERT_EQ(1U, damaged.frames.size());
  EXPECT_EQ(7, damaged.frames[0].header.subject);
}

// However the bytes are damaged, the reader ends with frames and a status. Memory stays within the limits.
TEST(FrameReader, survivesDamageAnywhere) {
  test::forSeeds(300, [](test::Random& random) {
    std::vector<std::byte> stream = streamOf({randomFrame(random, 60), randomFrame(random, 60)});
    for (uint64_t left = 1 + test::pick(random, 5); left > 0; --left)
      stream[test::pick(random, stream.size())] = static_cast<std::byte>(random());
    Stream damaged({.payloadBytes = 4096, .bufferBytes = 4096});
    damaged.feed(stream).ignore();  // refused or not: a buffer's bytes have no checksum
    EXPECT_LE(damaged.frames.size(), 2U);
  });
}

// Also of one that sends without end, and where TLS keeps a part of what it has read.
TEST(FrameReaderTurn, endsAfterAboutAMebibyte) {
  constexpr size_t kFrames = 100'000, kTurnBytes = 1U << 20, kReadBytes = 64U << 10, kRecordBytes = 16U << 10;
  test::TlsPair pair;
  io::setBufferSizes(pair.a.fd(), 8U << 20);
  std::vector<std::byte> stream;
  for (size_t i = 0; i < kFrames; ++i) {
    auto front = wire::frameFront(FrameKind::kMessage, 1, std::vector<std::byte>(43), {});
    stream.insert(stream.end(), front.begin(), front.end());
  }
  std::thread writer([&] { EXPECT_TRUE(io::writeAll(pair.a, stream, deadlineAfter(test::kHangs)).ok()); });
  FrameReader reader({});
  size_t frames = 0;
  UniqueFunction<void(Frame)> onFrame = [&](const Frame&) {
    ++frames;
    // Slower than the sender, which so always has more.
    for (const TimePoint end = Clock::now() + std::chrono::microseconds(3); Clock::now() < end;) continue;
  };
  for (size_t before = 0; frames < kFrames; before = frames) {
    const auto more = test::readable(pair.b.fd(), "the next record");
    EXPECT_TRUE(more);
    if (!more) {
      pair.b = io::Stream();  // ends the writer
      break;
    }
    throwIfError(reader.readFrom(pair.b, onFrame).status());
    EXPECT_EQ(0U, pair.b.pending()) << "nobody would hear of it";
    EXPECT_LT((frames - before) * (stream.size() / kFrames), kTurnBytes + kReadBytes + 2 * kRecordBytes);
  }
  writer.join();
}

}  // namespace
}  // namespace treadle::link::frame_reader_test
