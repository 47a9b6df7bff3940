// Jobs whose links are TLS, by the job key and by certificates, and who is kept out of them.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_functions.h"
#include "tests/support/certificates.h"
#include "tests/support/readable.h"
#include "treadle/core/io/socket.h"

namespace treadle::tls_test {
namespace {

using test::contains;

constexpr const char* kKey = "the key of this job";

using Adjust = std::function<void(JoinOptions&)>;

// Returns why a worker could not join as rank 1. Rank 0 keeps waiting, and the job starts when the right worker joins.
Status refusalOf(const Adjust& stranger, const Adjust& ofTheJob) {
  const uint16_t port = test::freePort();
  auto join = [&](int rank, const Adjust& adjust) {
    JoinOptions options = test::joinOptions("w" + std::to_string(rank), rank, 2, port);
    options.launch->jobKey = kKey;
    adjust(options);
    try {
      Worker::join(options)->shutdown();
      return Status();
    } catch (const Error& error) {
      return error.status();
    }
  };
  auto first = std::async(std::launch::async, [&] { return join(0, ofTheJob); });
  Status refused = join(1, stranger), second = join(1, ofTheJob), joined = first.get();
  EXPECT_TRUE(second.ok()) << second.toString();
  EXPECT_TRUE(joined.ok()) << joined.toString();
  return refused;
}

void overTls(JoinOptions& options) {
  options.tls = TlsUse::kAlways;
  options.channels = Channels{.unixSockets = false, .sharedMemory = false, .crossMemory = false};
}

Adjust withCertificates(const test::CertificateFiles& files, const test::CertificateFiles& authority) {
  return [&](JoinOptions& options) {
    overTls(options);
    options.certificates = Certificates{files.certificate(), files.privateKey(), authority.authority()};
  };
}

TEST(WorkerTls, isThereByTheJobKeyOneThatRankZeroMadeAndCertificates) {
  test::CertificateFiles files;
  const Adjust byKey = [](JoinOptions& options) {
    overTls(options);
    options.launch->jobKey = kKey;
  };
  for (const Adjust& adjust : {byKey, Adjust(&overTls), withCertificates(files, files)}) {
    test::WorkerJob job({"a", "b"}, test::peerFunctions(), adjust);
    EXPECT_EQ(7 * (5 << 20), test::sumOf(job[0].call<&test::peerEcho>("b", test::bulkOf(5U << 20, 7))));
    EXPECT_EQ(3, job[1].call<&test::peerAdd>("a", 1, 2));
  }
}

TEST(WorkerTls, keepsOutWhoHasAnotherKey) {
  const Adjust otherKey = [](JoinOptions& options) {
    overTls(options);
    options.launch->jobKey = "the key of another job";
  };
  Status refused = refusalOf(otherKey, &overTls);
  EXPECT_EQ(Code::kUnauthenticated, refused.code()) << refused.toString();
  EXPECT_TRUE(contains(refused.message(), "same key")) << refused.message();
}

TEST(WorkerTls, keepsOutWhoseCertificateIsOfAnotherAuthority) {
  test::CertificateFiles ours, theirs;
  Status refused = refusalOf(withCertificates(theirs, ours), withCertificates(ours, ours));
  EXPECT_EQ(Code::kUnauthenticated, refused.code()) << refused.toString();
}

TEST(WorkerTls, onOneSideAloneIsOneSentenceThatSaysSo) {
  const Adjust inClear = [](JoinOptions&) {};
  for (const Status& refused : {refusalOf(inClear, &overTls), refusalOf(&overTls, inClear)}) {
    EXPECT_EQ(Code::kFailedPrecondition, refused.code()) << refused.toString();
    EXPECT_TRUE(contains(refused.message(), "TREADLE_TLS")) << refused.message();
  }
}

TEST(WorkerTls, andPlaintextExcludeEachOther) {
  JoinOptions options = test::joinOptions("a", 0, 1, test::freePort());
  options.allowPlaintext = true;
  options.tls = TlsUse::kAlways;
  EXPECT_EQ(Code::kInvalidArgument, options.validate().code());
  options.tls.reset();
  EXPECT_TRUE(options.validate().ok());
  options.certificates = Certificates{"/some/a.pem", "/some/a.key", "/some/ca.pem"};
  EXPECT_TRUE(contains(options.validate().message(), "certificates")) << "they would be of no use";
}

TEST(WorkerTls, saysWhichFileCannotBeUsed) {
  JoinOptions options = test::joinOptions("a", 0, 1, test::freePort());
  options.certificates = Certificates{"/nowhere/a.pem", "/nowhere/a.key", "/nowhere/ca.pem"};
  EXPECT_TRUE(contains(test::messageOf<ArgumentError>([&] { Worker::join(options); }), "/nowhere/a.pem"));
}

// A hundred strangers at once, and again: calls go on, who comes later with the key comes in, and the log has a line.
TEST(WorkerTls, isNotDisturbedByAFloodOfStrangers) {
  std::string address;
  test::WorkerJob job({"a", "b"}, test::peerFunctions(), [&](JoinOptions& options) {
    overTls(options);
    options.launch->jobKey = kKey;
    if (options.name == "b") address = *(options.listenAddress = "tcp://127.0.0.1:" + std::to_string(test::freePort()));
  });
  testing::internal::CaptureStderr();
  std::atomic<bool> over = false;
  const io::Address target = valueOrThrow(io::Address::parse(address));
  {
    // One at the least, however soon the calls are done: it is answered when the worker has noted it.
    io::Fd stranger = valueOrThrow(io::connectTo(target, deadlineAfter(test::kHangs)));
    constexpr std::string_view kWords = "GET / HTTP/1.1\r\n\r\n";
    io::writeAll(stranger.get(), std::as_bytes(std::span(kWords)), deadlineAfter(test::kHangs)).ignore();
    EXPECT_TRUE(test::readable(stranger.get(), "an answer"));
  }
  std::thread flood([&] {
    while (!over) {
      std::vector<io::Fd> strangers;
      for (int i = 0; i < 100; ++i)
        if (auto fd = io::connectTo(target, deadlineAfter(test::kHangs)); fd.ok()) {
          std::string_view words = i % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : "\x16\x03\x01\x00\x05hello";
          io::writeAll(fd->get(), std::as_bytes(std::span(words)), Clock::now()).ignore();
          strangers.push_back(std::move(*fd));
        }
    }
  });
  for (int i = 0; i < 300; ++i) EXPECT_EQ(3, job[0].call<&test::peerAdd>("b", 1, 2));
  over = true;
  flood.join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(1, std::count(log.begin(), log.end(), '\n')) << log;
  EXPECT_TRUE(contains(log, "127.0.0.1")) << log;
  EXPECT_EQ(7 * (5 << 20), test::sumOf(job[0].call<&test::peerEcho>("b", test::bulkOf(5U << 20, 7))));
}

}  // namespace
}  // namespace treadle::tls_test
