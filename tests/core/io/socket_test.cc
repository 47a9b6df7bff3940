#include "treadle/core/io/socket.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/readable.h"
#include "treadle/core/base/error.h"

namespace treadle::io::socket_test {
namespace {

using namespace std::chrono_literals;

TimePoint soon() { return Clock::now() + 50ms; }
using test::patience;

struct Pair {
  Fd a, b;
};

Pair connectedPair() {
  int ends[2];
  EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  return {Fd(ends[0]), Fd(ends[1])};
}

Result<Fd> acceptOne(int listener) {
  EXPECT_TRUE(test::readable(listener, "a connection"));
  return acceptFrom(listener);
}

TEST(Socket, connectsOverTcpAndUnix) {
  for (const char* text : {"tcp://127.0.0.1:0", "tcp://[::1]:0", "unix:treadle-socket-test-connects"}) {
    Result<Fd> listener = listenOn(*Address::parse(text));
    if (!listener.ok() && std::string(text).find("::1") != std::string::npos) continue;  // a host without IPv6
    ASSERT_TRUE(listener.ok()) << listener.status().toString();
    EXPECT_FALSE(acceptFrom(listener->get())->valid());  // nobody is there yet
    Result<Fd> client = connectTo(*Address::ofSocket(listener->get()), patience());
    ASSERT_TRUE(client.ok()) << client.status().toString();
    Result<Fd> server = acceptOne(listener->get());
    ASSERT_TRUE(server.ok() && server->valid());
    for (int fd : {listener->get(), client->get(), server->get()}) {
      EXPECT_NE(0, ::fcntl(fd, F_GETFD) & FD_CLOEXEC);
      EXPECT_NE(0, ::fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
    // The kernel tells the user of a UNIX socket only; of TCP nothing may be believed.
    EXPECT_EQ(std::string(text).starts_with("unix:"), peerIsSameUser(server->get()));
  }
}

bool setLoopback(bool up) {
  Fd control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", sizeof request.ifr_name - 1);
  request.ifr_flags = static_cast<short>(up ? IFF_UP : 0);
  return ::ioctl(control.get(), SIOCSIFFLAGS, &request) == 0;
}

// In a network of this thread's own, which loses every packet from then on: neither end hears of it.
TEST(Socket, isProbedWhileNothingIsSent) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a network";
  std::thread([] {
    if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "no network can be made here";
    ASSERT_TRUE(setLoopback(true));
    Fd listener = valueOrThrow(listenOn(*Address::parse("tcp://127.0.0.1:0")));
    Fd client = valueOrThrow(connectTo(*Address::ofSocket(listener.get()), patience()));
    Fd server = valueOrThrow(acceptOne(listener.get()));
    for (int fd : {client.get(), server.get()}) probeWhileIdle(fd, 2s);
    EXPECT_FALSE(waitFor(client.get(), POLLIN, soon()));
    ASSERT_TRUE(setLoopback(false));
    for (int fd : {client.get(), server.get()}) {
      ASSERT_TRUE(test::readable(fd, "the end of the connection"));
      char byte;
      EXPECT_EQ(-1, ::recv(fd, &byte, 1, MSG_DONTWAIT));
    }
  }).join();
}

TEST(Socket, namesTheAddressThatIsInUse) {
  for (const char* text : {"tcp://127.0.0.1:0", "unix:treadle-socket-test-in-use"}) {
    Result<Fd> first = listenOn(*Address::parse(text));
    ASSERT_TRUE(first.ok());
    Address address = *Address::ofSocket(first->get());
    Status second = listenOn(address).status();
    EXPECT_EQ(Code::kFailedPrecondition, second.code());
    EXPECT_NE(std::string::npos, second.message().find(address.toString() + " is in use")) << second.message();
  }
}

TEST(Socket, connectingToNobodyIsPeerLostAtOnce) {
  Address address;
  {
    Result<Fd> listener = listenOn(*Address::parse("tcp://127.0.0.1:0"));
    address = *Address::ofSocket(listener->get());
  }
  Status refused = connectTo(address, patience()).status();
  EXPECT_EQ(Code::kPeerLost, refused.code());
  EXPECT_NE(std::string::npos, refused.message().find(address.toString()));
  EXPECT_EQ(Code::kPeerLost, connectTo(*Address::parse("unix:nobody-is-here"), patience()).status().code());
}

// A listener whose queue is full drops what comes: the connection neither stands nor fails.
TEST(Socket, connectingEndsAtTheDeadline) {
  Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  Address any = *Address::parse("tcp://127.0.0.1:0");
  ASSERT_EQ(0, ::bind(listener.get(), any.get(), any.size()));
  ASSERT_EQ(0, ::listen(listener.get(), 0));
  Address address = *Address::ofSocket(listener.get());
  std::vector<Fd> queued;
  Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) {
    Result<Fd> fd = connectTo(address, soon());
    status = fd.ok() ? Status() : fd.status();
    if (fd.ok()) queued.push_back(std::move(*fd));
  }
  EXPECT_EQ(Code::kDeadlineExceeded, status.code());
  EXPECT_NE(std::string::npos, status.message().find(address.toString()));
}

TEST(Socket, carriesMoreThanItsBuffersHold) {
  Pair pair = connectedPair();
  std::vector<std::byte> sent(8 << 20), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 >> 5);
  Status written;
  std::thread writer([&] { written = writeAll(pair.a.get(), sent, patience()); });
  Status read = readAll(pair.b.get(), got, patience());
  writer.join();
  EXPECT_TRUE(written.ok()) << written.toString();
  EXPECT_TRUE(read.ok()) << read.toString();
  EXPECT_EQ(sent, got);
}

TEST(Socket, readingAndWritingEndAtTheDeadline) {
  Pair pair = connectedPair();
  std::vector<std::byte> bytes(8 << 20);
  EXPECT_EQ(Code::kDeadlineExceeded, readAll(pair.a.get(), bytes, soon()).code());
  EXPECT_EQ(Code::kDeadlineExceeded, writeAll(pair.a.get(), bytes, soon()).code());
}

TEST(Socket, aPeerThatGoesIsPeerLostToReaderAndWriter) {
  Pair pair = connectedPair();
  std::vector<std::byte> bytes(10);
  ASSERT_TRUE(writeAll(pair.b.get(), Bytes(bytes).first(4), patience()).ok());
  pair.b.reset();
  EXPECT_EQ(Code::kPeerLost, readAll(pair.a.get(), bytes, patience()).code());
  EXPECT_EQ(Code::kPeerLost, writeAll(pair.a.get(), bytes, patience()).code());
}

TEST(Socket, waitForTellsReadinessFromTheDeadline) {
  Pair pair = connectedPair();
  EXPECT_TRUE(waitFor(pair.a.get(), POLLOUT, patience()));
  EXPECT_FALSE(waitFor(pair.a.get(), POLLIN, soon()));
  EXPECT_FALSE(waitFor(pair.a.get(), POLLIN, Clock::now() - 1s));
  pair.b.reset();
  EXPECT_TRUE(waitFor(pair.a.get(), POLLIN, kNever));
}

TEST(Socket, deadlinesBecomeMillisecondsRoundedUp) {
  EXPECT_EQ(-1, millisecondsUntil(kNever));
  EXPECT_EQ(0, millisecondsUntil(Clock::now() - 1h));
  EXPECT_EQ(INT_MAX, millisecondsUntil(Clock::now() + 24h * 365));
  // Rounded down, it would spin through the last millisecond.
  int milliseconds = millisecondsUntil(Clock::now() + 1h);
  EXPECT_GT(milliseconds, 1'800'000);
  EXPECT_LE(milliseconds, 3'600'000);
  // A thread that loses its core between the two looks at the clock finds nothing left.
  EXPECT_TRUE(test::eventually([] { return millisecondsUntil(Clock::now() + 900us) == 1; }));
}

// A child in a namespace in which no user has a number: to it, this process could be anybody's.
TEST(Socket, knowsNoUserWithoutANumber) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(2);
    int ends[2];
    const bool made = ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0;
    ::_exit(made && !peerIsSameUser(ends[0]) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  EXPECT_EQ(child, ::waitpid(child, &status, 0));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this system makes no user namespaces";
  EXPECT_EQ(0, WEXITSTATUS(status));
}

TEST(FreePort, isNeverOneOfAnotherProcess) {
  test::PortRange one;
  test::PortRange another;
  std::set<uint16_t> ports;
  for (int i = 0; i < test::PortRange::kPorts / 2; ++i) {
    EXPECT_TRUE(ports.insert(one.next()).second);
    EXPECT_TRUE(ports.insert(another.next()).second);
  }
}

}  // namespace
}  // namespace treadle::io::socket_test
