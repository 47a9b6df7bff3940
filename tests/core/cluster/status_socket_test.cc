#include "treadle/core/cluster/status_socket.h"

#include <fcntl.h>
#include <unistd.h>

#include <functional>

#include "gtest/gtest.h"
#include "tests/support/launch_environment.h"
#include "tests/support/seeds.h"
#include "tests/support/status_socket.h"

namespace treadle::cluster::status_socket_test {
namespace {

using Environment = treadle::test::LaunchEnvironment;

const FirstEnd kEnd{1, 4, "127.0.0.1:4000", 2, "trainer0", "was killed by SIGKILL"};
const Launch kLaunch{1, 4, "127.0.0.1", 4000, ""};

class StatusSocket : public testing::Test {
 protected:
  std::string variable(ino_t more = 0) const { return socket_.variableOf(socket_.worker(), more); }
  std::string receivedName() { return nameFromMessage(socket_.received()); }

  test::StatusSocket socket_;
};

TEST_F(StatusSocket, carriesTheNameToTheLauncher) {
  Environment environment({{kStatusVariable, variable()}});
  tellLauncher("trainer0");
  EXPECT_EQ("trainer0", receivedName());
  EXPECT_NE(0, ::fcntl(socket_.worker(), F_GETFD) & FD_CLOEXEC) << "what the worker starts does not get it";
}

TEST_F(StatusSocket, carriesWhyAWorkerEnds) {
  Environment environment({{kStatusVariable, variable()}});
  tellLauncherOfFailure();
  const std::string failure = socket_.received();
  EXPECT_TRUE(tellsFailure(failure) && !tellsGivingUp(failure)) << failure;
  tellLauncherOfGivingUp();
  const std::string givingUp = socket_.received();
  EXPECT_TRUE(tellsGivingUp(givingUp) && !tellsFailure(givingUp)) << givingUp;
}

TEST_F(StatusSocket, isLeftAloneWhenItIsNotTheOneThatWasGiven) {
  for (const std::string& value : {variable(1), std::string("1:0"), std::string("99999:1"), std::string("x"),
                                   std::string(":"), std::string("-1:-1"), socket_.variableOf(STDOUT_FILENO)}) {
    Environment environment({{kStatusVariable, value}});
    tellLauncher("trainer0");
    EXPECT_EQ("", receivedName()) << value;
    EXPECT_EQ(-1, LauncherWatch(kLaunch).fd()) << value;
  }
  Environment environment;
  tellLauncher("trainer0");
  EXPECT_EQ("", receivedName());
  EXPECT_EQ(-1, LauncherWatch(kLaunch).fd());
}

TEST_F(StatusSocket, doesNotKillTheWorkerWhenTheLauncherIsGone) {
  Environment environment({{kStatusVariable, variable()}});
  socket_.closeLauncher();
  tellLauncher("trainer0");
  EXPECT_FALSE(LauncherWatch(kLaunch).ended());
}

TEST_F(StatusSocket, believesOnlyNames) {
  for (std::string bad :
       {std::string(128, 'a'), std::string("a b"), std::string("a\n"), std::string("\x1b[2J"), std::string("a\0b", 3)})
    EXPECT_EQ("", nameFromMessage(bad));
  std::string longest(127, 'a');
  EXPECT_EQ(longest, nameFromMessage(longest));
}

class LauncherWatchTest : public StatusSocket {
 protected:
  // What a worker of `launch` makes of this failure.
  static Status causeOf(const Status& why, const Launch& launch = kLaunch) {
    return LauncherWatch(launch).causeOf(why);
  }

  Environment environment_{{{kStatusVariable, variable()}}};
  const Status late_ = deadlineExceeded("rank 2 did not arrive");
};

TEST_F(LauncherWatchTest, namesTheWorkerThatEndedFirst) {
  EXPECT_EQ(late_.toString(), causeOf(late_).toString());
  socket_.send(encodeFirstEnd(kEnd));
  // It stays there: a worker that joins again hears of it too.
  for (int time = 0; time < 2; ++time) {
    const Status why = causeOf(late_);
    EXPECT_EQ(Code::kPeerLost, why.code());
    EXPECT_EQ("trainer0", why.worker());
    EXPECT_EQ("worker 'trainer0' (rank 2) was killed by SIGKILL before all had joined; look at its output",
              why.message());
  }
}

TEST_F(LauncherWatchTest, namesAWorkerThatToldNoNameByItsRank) {
  FirstEnd end = kEnd;
  end.name.clear();
  end.how = "ended with exit code 0";
  socket_.send(encodeFirstEnd(end));
  const Status why = causeOf(peerLost("b", "it closed its connection"));
  EXPECT_EQ("rank 2", why.worker());
  EXPECT_EQ("rank 2 ended with exit code 0 before all had joined; look at its output", why.message());
}

TEST_F(LauncherWatchTest, leavesAReasonAloneThatNoEndBringsAbout) {
  socket_.send(encodeFirstEnd(kEnd));
  const Status wrong = invalidArgument("the name 'a' is used twice");
  EXPECT_EQ(wrong.toString(), causeOf(wrong).toString());
  EXPECT_TRUE(causeOf({}).ok());
}

// A process may take part in jobs that its launcher knows nothing of.
TEST_F(LauncherWatchTest, doesNotHeedWhatIsSaidOfAnotherJob) {
  socket_.send(encodeFirstEnd(kEnd));
  for (const auto& change : std::vector<std::function<void(Launch&)>>{
           [](Launch& l) { l.rank = 0; }, [](Launch& l) { l.worldSize = 5; }, [](Launch& l) { l.masterPort = 4001; },
           [](Launch& l) { l.masterAddress = "10.0.0.1"; },
           [](Launch& l) { l.rank = kAnyRank, l.worldSize = kOpenWorld; }}) {
    Launch other = kLaunch;
    change(other);
    EXPECT_FALSE(LauncherWatch(other).ended());
    EXPECT_EQ(late_.toString(), causeOf(late_, other).toString());
  }
}

TEST_F(LauncherWatchTest, doesNotHeedGarbage) {
  socket_.send("ended\n1\n4");
  EXPECT_FALSE(LauncherWatch(kLaunch).ended());
}

TEST(FirstEnd, isReadAsItWasWritten) {
  EXPECT_EQ(kEnd, parseFirstEnd(encodeFirstEnd(kEnd)));
  FirstEnd nameless = kEnd;
  nameless.name.clear();
  EXPECT_EQ(nameless, parseFirstEnd(encodeFirstEnd(nameless)));
}

TEST(FirstEnd, isRefusedWhenNoLauncherWritesIt) {
  for (const auto& spoil : std::vector<std::function<void(FirstEnd&)>>{
           [](FirstEnd& e) { e.reader = 4; }, [](FirstEnd& e) { e.rank = 4; }, [](FirstEnd& e) { e.rank = -1; },
           [](FirstEnd& e) { e.worldSize = kMaxWorldSize + 1; }, [](FirstEnd& e) { e.worldSize = 0; },
           [](FirstEnd& e) { e.name = "a b"; }, [](FirstEnd& e) { e.name = std::string(128, 'a'); },
           [](FirstEnd& e) { e.how = ""; }, [](FirstEnd& e) { e.how = "\x1b[2J"; }, [](FirstEnd& e) { e.how = "a\nb"; },
           [](FirstEnd& e) { e.how = std::string(101, 'a'); }, [](FirstEnd& e) { e.master = std::string(600, 'a'); }}) {
    FirstEnd bad = kEnd;
    spoil(bad);
    EXPECT_FALSE(parseFirstEnd(encodeFirstEnd(bad))) << encodeFirstEnd(bad);
  }
  const std::string whole = encodeFirstEnd(kEnd);
  for (const char* bad : {"", "!", "?", "trainer0", "\n\n\n\n\n\n"}) EXPECT_FALSE(parseFirstEnd(bad)) << bad;
  EXPECT_FALSE(parseFirstEnd(whole + "\n"));
  EXPECT_FALSE(parseFirstEnd(whole.substr(0, whole.rfind('\n') + 1)));
}

TEST(FirstEnd, harmsNobodyWhenItIsGarbled) {
  test::forSeeds(2000, [](test::Random& random) {
    std::string message = encodeFirstEnd(kEnd);
    for (int i = 0; i < 3; ++i) message[test::pick(random, message.size())] = static_cast<char>(random());
    message.resize(test::pick(random, message.size() + 1));
    const std::optional<FirstEnd> end = parseFirstEnd(message);
    EXPECT_TRUE(!end || parseFirstEnd(encodeFirstEnd(*end)) == end) << message;
  });
}

}  // namespace
}  // namespace treadle::cluster::status_socket_test
