// A part of an asynchronous service whose server is lost: the machine that it moves to, and a worker that has had
// answers of the lost one.

#include <cstring>
#include <memory>
#include <utility>

#include "tests/core/summation/asynchronous_adder_alone.h"
#include "treadle/core/summation/machine_sums.h"

namespace treadle::summation::asynchronous_adder_test {
namespace {

class MovedPart : public AsynchronousAdderAlone {
 protected:
  static constexpr Machine kLost = kServer + 1;

  MovedPart() {
    declaration_.parts[0].machine = kLost;
    adder_ = std::make_unique<AsynchronousAdder>(declaration_, kServer);
  }

  Status report(size_t worker, uint64_t round, Version version) {
    const Frame frame{FrameKind::kVersion, 24, 0, round, 0};
    Result<MutableBytes> room = adder_->roomFor(worker, frame);
    if (!room.ok()) return room.status();
    std::ranges::copy(bytesOf(version), room->begin());
    return adder_->had(worker, frame);
  }
  Status adopt() {
    declaration_.parts[0].machine = kServer;
    return adder_->adopt(0);
  }
  void expectRelease(size_t worker, uint64_t round) {
    const auto frame = adder_->take(worker);
    EXPECT_TRUE(frame && frame->frame == (Frame{FrameKind::kRelease, 0, 0, round, 0})) << "worker " << worker;
  }

  Declaration declaration_ = declared();
  std::unique_ptr<AsynchronousAdder> adder_;
};

// Worker 0 has had an answer with its data and that of worker 2, which has had none; worker 1 has the answer before.
TEST_F(MovedPart, GoesOnFromTheLastAnswerThatAWorkerHas) {
  EXPECT_TRUE(report(1, 1, {1, 1, 0}).ok());
  EXPECT_TRUE(adopt().ok());
  EXPECT_TRUE(report(0, 2, {2, 1, 1}).ok());
  EXPECT_FALSE(adder_->next(0) || adder_->next(1)) << "a worker has not reported";
  EXPECT_TRUE(report(2, 0, {0, 0, 0}).ok());
  EXPECT_FALSE(adder_->next(1) || adder_->next(2)) << "the sum is not here";
  expectRelease(0, 1);
  give(*adder_, 0, all(111), 1);
  expectRelease(1, 1);
  expectRelease(2, 0);
  EXPECT_EQ((Version{2, 1, 1}), versionFor(*adder_, 0, 1));
  give(*adder_, 1, all(1'000), 1);
  EXPECT_EQ(all(1'111), answerTo(*adder_, 1, 1));
  give(*adder_, 2, all(100), 0);
  EXPECT_EQ(all(1'111), answerTo(*adder_, 2, 0)) << "its data is in the sum already";
  give(*adder_, 2, all(100), 1);
  EXPECT_EQ(all(1'211), answerTo(*adder_, 2, 1));
}

TEST_F(MovedPart, BeginsAnewWhereNobodyHasHadAnAnswer) {
  EXPECT_TRUE(adopt().ok());
  for (size_t worker = 0; worker < 3; ++worker) EXPECT_TRUE(report(worker, 0, {0, 0, 0}).ok());
  for (size_t worker = 0; worker < 3; ++worker) expectRelease(worker, 0);
  give(*adder_, 0, all(1));
  EXPECT_EQ(all(1), answerTo(*adder_, 0));
}

// What it has is no news.
TEST_F(MovedPart, TakesTheAnswerOfAWorkerThatHasLeft) {
  for (const size_t worker : {0, 1}) adder_->left(worker);
  EXPECT_TRUE(adopt().ok());
  EXPECT_TRUE(report(0, 1, {1, 0, 0}).ok() && report(1, 1, {1, 1, 0}).ok() && report(2, 0, {0, 0, 0}).ok());
  expectRelease(1, 0);
  give(*adder_, 1, all(11));
  expectRelease(2, 0);
  give(*adder_, 2, all(100));
  EXPECT_EQ(all(111), answerTo(*adder_, 2));
}

TEST_F(MovedPart, AwaitsWhoHasNotReportedAndThenTheAnswer) {
  EXPECT_TRUE(report(1, 1, {1, 1, 0}).ok());
  EXPECT_TRUE(adder_->awaited().empty()) << "it has not moved yet";
  EXPECT_TRUE(adopt().ok());
  EXPECT_EQ((std::vector<std::pair<size_t, uint64_t>>{{0, Adder::kMoves}}), adder_->awaited());
  EXPECT_EQ((std::vector<size_t>{0, 2}), adder_->missing(0));
  EXPECT_TRUE(report(0, 1, {1, 0, 0}).ok() && report(2, 0, {0, 0, 0}).ok());
  EXPECT_EQ(std::vector<size_t>{1}, adder_->missing(0));
  expectRelease(1, 0);
  give(*adder_, 1, all(1));
  EXPECT_TRUE(adder_->awaited().empty());
}

TEST_F(MovedPart, RefusesDataThatTheLastAnswerDoesNotGive) {
  EXPECT_TRUE(adopt().ok());
  expectRefusal(adder_->announced(1, announce(0)), "a part that moves");
  EXPECT_TRUE(report(0, 1, {1, 0, 0}).ok() && report(1, 0, {0, 0, 0}).ok() && report(2, 0, {0, 0, 0}).ok());
  expectRefusal(adder_->announced(1, announce(0)), "a part that moves");
  expectRefusal(adder_->announced(0, announce(0, 1)), "round 1 where round 0 was next");
}

TEST_F(MovedPart, RefusesVersionsThatNoWorkerHas) {
  const auto refuses = [this](const std::vector<std::pair<uint64_t, Version>>& reports, const std::string& why) {
    declaration_.parts[0].machine = kLost;
    adder_ = std::make_unique<AsynchronousAdder>(declaration_, kServer);
    Status status = adopt();
    for (size_t worker = 0; worker < reports.size() && status.ok(); ++worker)
      status = report(worker, reports[worker].first, reports[worker].second);
    expectRefusal(status, why);
  };
  refuses({{0, {1, 0, 0}}}, "a version of other data than it has given");
  refuses({{1, {1, 0, 0}}, {0, {0, 0, 0}}, {2, {0, 0, 2}}}, "do not fit together");
  refuses({{3, {3, 2, 0}}, {0, {0, 0, 0}}, {0, {0, 0, 0}}}, "do not fit together");
  refuses({{0, {0, 1, 0}}, {0, {0, 0, 0}}, {0, {0, 0, 0}}}, "do not fit together");
  refuses({{0, {0, UINT64_MAX, 1}}, {0, {0, 0, 0}}, {0, {0, 0, 0}}}, "do not fit together");
}

TEST_F(MovedPart, RefusesVersionsOfPartsThatDoNotMove) {
  const Version none{0, 0, 0};
  const auto refuses = [this](size_t worker, const Frame& frame) {
    expectRefusal(adder_->roomFor(worker, frame).status(), "the version of a part");
  };
  refuses(0, {FrameKind::kVersion, 24, 1, 0, 0});
  refuses(0, {FrameKind::kVersion, 24, 2, 0, 0});
  refuses(0, {FrameKind::kVersion, 24, 0, 0, 4});
  refuses(0, {FrameKind::kVersion, 16, 0, 0, 0});
  expectRefusal(report(kServer, 0, none), "though it is no worker");
  EXPECT_TRUE(report(0, 0, none).ok());
  expectRefusal(report(0, 0, none), "does not move");
  EXPECT_TRUE(adopt().ok() && report(1, 0, none).ok() && report(2, 0, none).ok());
  expectRefusal(report(1, 0, none), "does not move");
  declaration_.parts[1].machine = 1;
  refuses(0, {FrameKind::kVersion, 24, 1, 0, 0});
}

// Workers do not wait for one that is slow and sums, as long as there are servers.
TEST(PartsOfALostServer, GoToServersAsLongAsThereAreSome) {
  const Bandwidths bandwidths = Bandwidths::even(2, 2, 1);
  Declaration declaration = *Declaration::of({{DataType::kInt64, 80'000'000}}, serviceShares(bandwidths, true));
  declaration.mode = {true, SumMode::kAnyStaleness};
  MachineSums sums(declaration, /*self=*/0, /*machines=*/4);
  const std::vector<Machine> first = sums.placesWithout(2, bandwidths);
  EXPECT_TRUE(!first.empty() && std::ranges::all_of(first, [](Machine one) { return one == 3; }));
  EXPECT_TRUE(sums.move(2, first).ok());
  const std::vector<Machine> second = sums.placesWithout(3, bandwidths);
  EXPECT_TRUE(!second.empty() && std::ranges::all_of(second, [](Machine one) { return one < 2; }));
}

// ---- a worker by hand: machine 0 of three workers, and a server

class AsynchronousRequester : public AsynchronousAdderAlone {
 protected:
  static constexpr Machine kOther = kServer + 1;

  void announceAndSend(uint64_t round) {
    data_ = all(1);
    requester_.announce(0, std::as_writable_bytes(std::span(data_)));
    send(kServer, round);
  }
  void send(Machine machine, uint64_t round) {
    ASSERT_EQ(announce(0, round), requester_.take(machine)->frame);
    ASSERT_TRUE(requester_.granted(machine, frame(FrameKind::kGrant, 0, 0, round)).ok());
    for (uint64_t piece = 0; piece < kPieces; ++piece) requester_.written(requester_.take(machine).value());
  }
  static Frame versionFrame(uint64_t round) { return {FrameKind::kVersion, 24, 0, round, 0}; }
  Status takeVersion(uint64_t round, Version version) {
    const Result<MutableBytes> room = requester_.roomFor(kServer, versionFrame(round));
    if (!room.ok()) return room.status();
    std::ranges::copy(bytesOf(version), room->begin());
    return requester_.arrived(versionFrame(round));
  }
  void takePiece(Machine machine, uint64_t piece, float value, uint64_t round) {
    const Frame sum = frame(FrameKind::kSum, 0, piece, round);
    const Result<MutableBytes> room = requester_.roomFor(machine, sum);
    ASSERT_TRUE(room.ok()) << room.status().message();
    const std::vector<float> answer = all(value);
    std::ranges::copy(std::as_bytes(std::span(answer)).first(sum.sizeBytes), room->begin());
    EXPECT_TRUE(requester_.arrived(sum).ok());
  }
  void takeAnswer(float value, uint64_t round, const Version& version) {
    ASSERT_TRUE(takeVersion(round, version).ok());
    for (uint64_t piece = 0; piece < kPieces; ++piece) takePiece(kServer, piece, value, round);
  }
  Version reported(Machine machine, uint64_t round) {
    const auto report = requester_.take(machine);
    EXPECT_TRUE(report && report->frame == versionFrame(round));
    Version version(3);
    if (report) std::ranges::copy(report->piece, bytesOf(version).begin());
    return version;
  }
  void moveTo(Machine machine) {
    const Machine from = std::exchange(declaration_.parts[0].machine, machine);
    requester_.moved(0, from);
  }

  Declaration declaration_ = declared();
  Requester requester_{declaration_, /*self=*/0, /*machines=*/5};
  std::vector<float> data_;
};

TEST_F(AsynchronousRequester, KeepsItsDataUntilAllOfTheAnswerIsThere) {
  announceAndSend(0);
  ASSERT_TRUE(takeVersion(0, {1, 0, 0}).ok());
  takePiece(kServer, 0, 7, 0);
  takePiece(kServer, 1, 7, 0);
  EXPECT_EQ(all(1), data_);
  takePiece(kServer, 2, 7, 0);
  EXPECT_EQ(all(7), data_);
  EXPECT_EQ(std::vector<size_t>{0}, requester_.takeDone());
  EXPECT_FALSE(requester_.next(kServer)) << "it reports nothing before a loss";
}

TEST_F(AsynchronousRequester, ReportsTheAnswerThatItHasAndGivesItWhenItIsReleased) {
  announceAndSend(0);
  takeAnswer(7, 0, {1, 2, 0});
  announceAndSend(1);
  ASSERT_TRUE(takeVersion(1, {2, 2, 1}).ok());
  takePiece(kServer, 0, 9, 1);
  moveTo(kOther);
  EXPECT_EQ(all(1), data_);
  EXPECT_EQ((Version{1, 2, 0}), reported(kOther, 1)) << "half of an answer is none";
  EXPECT_FALSE(requester_.next(kOther));
  ASSERT_TRUE(requester_.released(kOther, frame(FrameKind::kRelease, 0, 0, 0)).ok());
  EXPECT_EQ(announce(0, 0), requester_.take(kOther)->frame);
  ASSERT_TRUE(requester_.granted(kOther, frame(FrameKind::kGrant, 0, 0, 0)).ok());
  const Outgoing first = requester_.take(kOther).value();
  EXPECT_EQ(0, std::memcmp(first.piece.data(), all(7).data(), first.piece.size()));
  // It is lost too, and another worker has a later answer.
  moveTo(kServer);
  EXPECT_EQ((Version{1, 2, 0}), reported(kServer, 1));
  ASSERT_TRUE(requester_.released(kServer, frame(FrameKind::kRelease, 0, 0, 1)).ok());
  send(kServer, 1);
  takeAnswer(10, 1, {2, 3, 1});
  EXPECT_EQ(all(10), data_);
  moveTo(kOther);
  EXPECT_EQ((Version{2, 3, 1}), reported(kOther, 2));
}

TEST_F(AsynchronousRequester, RefusesWhatNoServerSends) {
  const auto refusesVersion = [this](const Frame& frame) {
    expectRefusal(requester_.roomFor(kServer, frame).status(), "not due");
  };
  refusesVersion(versionFrame(0));
  data_ = all(1);
  requester_.announce(0, std::as_writable_bytes(std::span(data_)));
  requester_.take(kServer);
  ASSERT_TRUE(requester_.granted(kServer, frame(FrameKind::kGrant, 0, 0, 0)).ok());
  refusesVersion(versionFrame(0));  // all of its data has to come first
  for (uint64_t piece = 0; piece < kPieces; ++piece) requester_.written(requester_.take(kServer).value());
  refusesVersion(versionFrame(1));
  refusesVersion({FrameKind::kVersion, 24, 0, 0, 4});
  refusesVersion({FrameKind::kVersion, 16, 0, 0, 0});
  expectRefusal(requester_.roomFor(kServer, frame(FrameKind::kSum, 0, 0, 0)).status(), "without its version");
  expectRefusal(takeVersion(0, {0, 5, 5}), "without this worker's data");
  ASSERT_TRUE(takeVersion(0, {1, 0, 0}).ok());
  refusesVersion(versionFrame(0));
  for (uint64_t piece = 0; piece < kPieces; ++piece) takePiece(kServer, piece, 2, 0);
  expectRefusal(requester_.released(kServer, frame(FrameKind::kRelease, 0, 0, 1)), "not due");
  moveTo(kOther);
  expectRefusal(requester_.released(kOther, frame(FrameKind::kRelease, 0, 0, 2)), "not due");
}

TEST(VersionsOfSums, AreRefusedWhereTheServiceIsSynchronous) {
  const Declaration declaration = {{{DataType::kFloat32, 4}}, {{0, 0, 4, 2}}, 2, {}};
  for (const Machine self : {Machine{0}, Machine{2}}) {
    MachineSums sums(declaration, self, /*machines=*/3);
    EXPECT_EQ(Code::kDataLoss, sums.roomFor(2 - self, {FrameKind::kVersion, 16, 0, 0, 0}).status().code());
  }
}

}  // namespace
}  // namespace treadle::summation::asynchronous_adder_test
