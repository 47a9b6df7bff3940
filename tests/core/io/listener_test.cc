// A listening socket while its process has no descriptors left.
#include "treadle/core/io/listener.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/support/reactor_thread.h"
#include "tests/support/sanitizer.h"

namespace treadle::io::listener_test {
namespace {

using namespace std::chrono_literals;

// While it lives, this process gets no descriptor more.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before_));
    const int free = ::dup(STDERR_FILENO);  // the lowest that is free
    EXPECT_LE(0, free);
    ::close(free);
    const rlimit now{static_cast<rlim_t>(free), before_.rlim_max};
    EXPECT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &now));
    EXPECT_EQ(-1, ::dup(STDERR_FILENO));
  }
  ~NoDescriptorsLeft() { EXPECT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &before_)); }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  rlimit before_{};
};

// The limit is one of the whole process, so this runs in a child, on one thread.
void acceptAtTheLimit() {
  auto reactor = valueOrThrow(Reactor::make());
  Fd socket = valueOrThrow(listenOn(valueOrThrow(Address::parse("tcp://127.0.0.1:0"))));
  const Address address = valueOrThrow(Address::ofSocket(socket.get()));
  std::vector<Fd> clients, accepted;
  for (int i = 0; i < 3; ++i) clients.push_back(valueOrThrow(connectTo(address, test::patience())));
  std::vector<Status> failures;
  auto listener = valueOrThrow(Listener::start(*reactor, std::move(socket),
                                               {[&](Fd connection) { accepted.push_back(std::move(connection)); },
                                                [&](const Status& why) { failures.push_back(why); }}));
  accepted.reserve(clients.size());
  {
    NoDescriptorsLeft limit;
    const TimePoint begin = Clock::now();
    EXPECT_TRUE(test::polledUntil(*reactor, [&] { return !failures.empty(); }));
    // The listener waits at least 100 ms between two tries, so there are few of them, and fewer on a busy machine. A
    // loop would make thousands.
    bool isOver = false;
    reactor->at(Clock::now() + 350ms, [&] { isOver = true; });
    EXPECT_TRUE(test::polledUntil(*reactor, [&] { return isOver; }));
    EXPECT_LE(failures.size(), static_cast<size_t>(1 + (Clock::now() - begin) / 100ms));
    EXPECT_TRUE(accepted.empty());
  }
  for (const Status& why : failures) EXPECT_EQ(Code::kResourceExhausted, why.code()) << why.toString();
  EXPECT_TRUE(test::polledUntil(*reactor, [&] { return accepted.size() == clients.size(); }));
  const size_t before = failures.size();
  clients.push_back(valueOrThrow(connectTo(address, test::patience())));
  EXPECT_TRUE(test::polledUntil(*reactor, [&] { return accepted.size() == clients.size(); }));
  EXPECT_EQ(before, failures.size());
}

TEST(Listener, pausesWhileThereAreNoDescriptorsAndAcceptsAllThatWaitedAfterwards) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer for undefined behaviour looks at memory through a pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      acceptAtTheLimit();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  EXPECT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child's failures are above: " << status;
}

}  // namespace
}  // namespace treadle::io::listener_test
