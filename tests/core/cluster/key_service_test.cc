#include "treadle/core/cluster/key_service.h"

#include <thread>

#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/other_user.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"

namespace treadle::cluster::key_service_test {
namespace {

using namespace std::chrono_literals;

using test::patience;

TEST(KeyService, handsOutOneKeyToAllOfThisUser) {
  test::ReactorThread reactor;
  const std::string port = std::to_string(test::freePort());
  auto service = KeyService::start(*reactor, port);
  ASSERT_TRUE(service.ok()) << service.status().toString();
  EXPECT_EQ(32U, (*service)->key().size());
  for (int i = 0; i < 20; ++i) {
    Result<std::string> key = fetchKey(port, patience());
    ASSERT_TRUE(key.ok()) << key.status().toString();
    EXPECT_EQ((*service)->key(), *key);
  }
  auto other = KeyService::start(*reactor, std::to_string(test::freePort()));
  EXPECT_NE((*service)->key(), (*other)->key());
}

TEST(KeyService, isWaitedForAndMissedByItsPort) {
  test::ReactorThread reactor;
  const std::string port = std::to_string(test::freePort());
  Status nobody = fetchKey(port, Clock::now() + 30ms).status();
  EXPECT_EQ(Code::kDeadlineExceeded, nobody.code());
  EXPECT_NE(std::string::npos, nobody.message().find(port)) << nobody.message();
  Result<std::string> early(internalError("not asked"));
  std::thread client([&] { early = fetchKey(port, patience()); });
  auto service = KeyService::start(*reactor, port);
  client.join();
  ASSERT_TRUE(early.ok()) << early.status().toString();
  EXPECT_EQ((*service)->key(), *early);
}

// As when the keeper of an open job leaves: the next one has the key.
TEST(KeyService, isAskedAgainWhereTheFirstEndsBeforeItAnswers) {
  test::ReactorThread reactor;
  const std::string port = std::to_string(test::freePort());
  auto first = valueOrThrow(io::listenOn(*io::Address::unixAbstract("treadle-key-" + port)));
  Result<std::string> key(internalError("not asked"));
  std::thread client([&] { key = fetchKey(port, patience()); });
  ASSERT_TRUE(test::readable(first.get(), "a client"));
  first = io::Fd();  // with the client in its queue
  auto service = KeyService::start(*reactor, port);
  client.join();
  ASSERT_TRUE(key.ok()) << key.status().toString();
  EXPECT_EQ((*service)->key(), *key);
}

TEST(KeyService, tellsTheSecondJobThatThePortIsInUse) {
  test::ReactorThread reactor;
  const std::string port = std::to_string(test::freePort());
  auto first = KeyService::start(*reactor, port);
  Status second = KeyService::start(*reactor, port).status();
  EXPECT_EQ(Code::kFailedPrecondition, second.code());
  EXPECT_NE(std::string::npos, second.message().find("another job on this host meets at '" + port + "'"));
  first->reset();
  EXPECT_TRUE(KeyService::start(*reactor, port).ok());
}

TEST(KeyService, givesNothingToAnotherUser) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  test::ReactorThread reactor;
  const std::string port = std::to_string(test::freePort());
  auto service = KeyService::start(*reactor, port);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(0, test::OtherUser::bytesHeardFrom(*io::Address::unixAbstract("treadle-key-" + port)));
  EXPECT_EQ((*service)->key(), *fetchKey(port, patience()));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(1, std::count(log.begin(), log.end(), '\n')) << log;
  EXPECT_NE(std::string::npos, log.find("another user of this host")) << log;
}

TEST(KeyService, isNotBelievedWhenItIsAnotherUsers) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  const std::string port = std::to_string(test::freePort());
  const auto impostor = test::OtherUser::listeningAt(*io::Address::unixAbstract("treadle-key-" + port));
  Status refused = fetchKey(port, patience()).status();
  EXPECT_EQ(Code::kUnauthenticated, refused.code());
  EXPECT_NE(std::string::npos, refused.message().find("another user")) << refused.message();
}

}  // namespace
}  // namespace treadle::cluster::key_service_test
