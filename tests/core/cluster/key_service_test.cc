#include "treadle/core/cluster/key_service.h"

#include <thread>

#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/reactor_thread.h"

namespace treadle::cluster {
namespace {

using namespace std::chrono_literals;

TimePoint patience() { return deadlineAfter(test::kHangs); }

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

}  // namespace
}  // namespace treadle::cluster
