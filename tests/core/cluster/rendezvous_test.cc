#include "treadle/core/cluster/rendezvous.h"

#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/meeting_at.h"
#include "tests/support/reactor_thread.h"
#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/io/interruption.h"

namespace treadle::cluster::rendezvous_test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kKey = "the key of this job";

using test::patience;

link::Credentials credentialsOf(const std::string& name, int rank) {
  return {kKey, {link::Purpose::kRendezvous, {name, rank}}};
}

class Meeting {
 public:
  explicit Meeting(World world, Duration joinTimeout = test::kHangs)
      : address(*io::Address::tcp("127.0.0.1", test::freePort())) {
    server = valueOrThrow(RendezvousServer::start(*reactor, {address}, credentialsOf("w0", 0), world, joinTimeout,
                                                  deadlineAfter(joinTimeout)));
  }
  ~Meeting() {
    server->stop();
    reactor.stop();
  }
  std::unique_ptr<RendezvousClient> connect(const std::string& name, int rank) {
    return valueOrThrow(RendezvousClient::connect(test::meetingAt({address}), credentialsOf(name, rank), patience()));
  }
  // Connects and registers; what comes of it.
  Result<Roster> meet(const std::string& name, int rank, World world) {
    auto client = RendezvousClient::connect(test::meetingAt({address}), credentialsOf(name, rank), patience());
    if (!client.ok()) return client.status();
    return (*client)->exchange(world, {"unix:" + name}, patience());
  }

  io::Address address;
  test::ReactorThread reactor;
  std::unique_ptr<RendezvousServer> server;
};

// Each function on a thread of its own; their results.
std::vector<Status> allAtOnce(const std::vector<std::function<Status()>>& functions) {
  std::vector<Status> results(functions.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < functions.size(); ++i) threads.emplace_back([&, i] { results[i] = functions[i](); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

::testing::AssertionResult isTold(const Status& status, Code code, const std::string& text) {
  const bool told = status.code() == code && status.message().find(text) != std::string::npos;
  return told ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << status.toString();
}

::testing::AssertionResult areTold(const std::vector<Status>& all, Code code, const std::string& text) {
  for (const Status& status : all)
    if (auto told = isTold(status, code, text); !told) return told;
  return ::testing::AssertionSuccess();
}

void expectTold(const Status& status, Code code, const std::string& text) { EXPECT_TRUE(isTold(status, code, text)); }

TEST(Rendezvous, givesAllTheRosterAndLetsNobodyGoBeforeAllAreReady) {
  constexpr int kSize = 5;
  Meeting meeting(kSize);
  std::atomic<int> ready = 0;
  std::vector<std::function<Status()>> workers;
  for (int rank = 0; rank < kSize; ++rank)
    workers.emplace_back([&, rank] {
      auto client = meeting.connect("w" + std::to_string(rank), rank);
      Result<Roster> roster =
          client->exchange(kSize, {"unix:" + std::to_string(rank), "tcp://127.0.0.1:1"}, patience());
      if (!roster.ok()) return roster.status();
      for (int each = 0; each < kSize; ++each) {
        const RosterEntry& entry = roster->at(static_cast<size_t>(each));
        EXPECT_EQ((WorkerInfo{"w" + std::to_string(each), each}), entry.worker);
        EXPECT_EQ((std::vector<std::string>{"unix:" + std::to_string(each), "tcp://127.0.0.1:1"}), entry.addresses);
      }
      ++ready;
      Status go = client->ready(patience());
      EXPECT_EQ(kSize, ready.load());
      return go;
    });
  for (const Status& status : allAtOnce(workers)) EXPECT_TRUE(status.ok()) << status.toString();
}

const Costs kKnown{{1, 5e9}, {1, 3}, 1, 16};  // a second, and three bytes per second

// What all get when they meet.
std::vector<Costs> costsOfAll(Meeting& meeting, const std::vector<std::string>& addresses) {
  const int size = static_cast<int>(addresses.size());
  std::vector<Costs> all(addresses.size());
  std::vector<std::function<Status()>> workers;
  for (int rank = 0; rank < size; ++rank)
    workers.emplace_back([&, rank] {
      auto client = meeting.connect("w" + std::to_string(rank), rank);
      const auto index = static_cast<size_t>(rank);
      Result<Roster> roster = client->exchange(size, {addresses[index]}, patience());
      all[index] = client->costs();
      return roster.ok() ? client->ready(patience()) : roster.status();
    });
  for (const Status& status : allAtOnce(workers)) EXPECT_TRUE(status.ok()) << status.toString();
  return all;
}

TEST(Rendezvous, measuresTheLinksAndSendsAllTheSameCosts) {
  Meeting meeting(4);
  meeting.server->measureFrom(kKnown, true, 60s);
  const std::vector<Costs> all =
      costsOfAll(meeting, {"tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "tcp://10.0.0.2:1", "tcp://10.0.0.3:1"});
  const Costs& costs = all.front();
  for (const Costs& each : all) EXPECT_EQ(costs, each);
  EXPECT_TRUE(isUsable(costs));
  EXPECT_EQ(rounded(costs), costs);
  EXPECT_LT(costs.sameHost.latency, kKnown.sameHost.latency) << "is measured";
  EXPECT_EQ(rounded(kKnown).sameHost.bandwidth, costs.sameHost.bandwidth) << "was known";
  EXPECT_LT(costs.betweenHosts.latency, kKnown.betweenHosts.latency);
  EXPECT_EQ(16U, costs.cores);
}

TEST(Rendezvous, keepsTheDefaultsWhereNothingIsMeasured) {
  Meeting alone(1), notAsked(2);
  alone.server->measureFrom(kKnown, true);
  EXPECT_EQ(rounded(kKnown), costsOfAll(alone, {"unix:a"}).front());
  EXPECT_EQ(Costs(), costsOfAll(notAsked, {"unix:a", "unix:b"}).back());
}

// Its echoes do not come, whatever else it does: the start takes the time of the survey longer, and nothing fails.
TEST(Rendezvous, startsWithDefaultsWhenAWorkerDoesNotEcho) {
  Meeting meeting(2);
  meeting.server->measureFrom(kKnown, true);
  auto silent = link::dial(meeting.address, credentialsOf("silent", 1), patience());
  ASSERT_TRUE(silent.ok());
  const auto say = [&](Bytes message) {
    ASSERT_TRUE(
        io::writeAll(silent->stream, wire::frameFront(wire::FrameKind::kMessage, 1, message, {}), patience()).ok());
  };
  const auto hear = [&] {
    return valueOrThrow(
        parseRendezvous(valueOrThrow(link::readOneFrame(silent->stream, rendezvousLimits(), patience())).payload));
  };
  say(encodeRegistration({2, {"unix:b"}, kNoTimeout}));
  auto first = meeting.connect("w0", 0);
  ASSERT_TRUE(first->exchange(2, {"unix:a"}, patience()).ok());
  EXPECT_EQ(rounded(kKnown), first->costs());
  const RendezvousMessage probe = hear(), roster = hear();
  EXPECT_EQ(Step::kProbe, probe.step);
  EXPECT_EQ(Step::kRoster, roster.step);
  EXPECT_EQ(first->costs(), roster.costs);
  say(encodeEcho(probe.number));  // too late, and of no effect
  say(encodeEcho(77));
  say(encodeStep(Step::kReady));
  EXPECT_TRUE(first->ready(patience()).ok());
}

TEST(Rendezvous, tellsAllWhenARankDiesWhileLinksAreMeasured) {
  Meeting meeting(2);
  meeting.server->measureFrom(kKnown, true);
  auto dying = link::dial(meeting.address, credentialsOf("dying", 1), patience());
  ASSERT_TRUE(dying.ok());
  ASSERT_TRUE(
      io::writeAll(dying->stream,
                   wire::frameFront(wire::FrameKind::kMessage, 1, encodeRegistration({2, {"unix:b"}, kNoTimeout}), {}),
                   patience())
          .ok());
  auto first = meeting.connect("w0", 0);
  std::thread thread([&] {
    link::readOneFrame(dying->stream, rendezvousLimits(), patience()).status().ignore();  // a probe, or the roster
    dying->stream = io::Stream();
  });
  Result<Roster> roster = first->exchange(2, {"unix:a"}, patience());
  thread.join();
  const Status status = roster.ok() ? first->ready(patience()) : roster.status();
  expectTold(status, Code::kPeerLost, "worker 'dying' (rank 1) was lost before all had joined");
}

TEST(Rendezvous, waitsForAServerThatStartsLater) {
  io::Address address = *io::Address::tcp("127.0.0.1", test::freePort());
  test::ReactorThread reactor;
  std::thread client([&] {
    EXPECT_TRUE(RendezvousClient::connect(test::meetingAt({address}), credentialsOf("w1", 1), patience()).ok());
  });
  auto server =
      valueOrThrow(RendezvousServer::start(*reactor, {address}, credentialsOf("w0", 0), 2, test::kHangs, patience()));
  client.join();
  server->stop();
  reactor.stop();
}

// Of several ports the first may be taken, by somebody who says nothing, by a job with another key.
TEST(Rendezvous, isFoundAtTheFirstPortThatIsFree) {
  io::Address silent = *io::Address::tcp("127.0.0.1", test::freePort());
  io::Fd listener = valueOrThrow(io::listenOn(silent));
  test::ReactorThread reactor;
  std::vector<io::Address> addresses = {silent};
  std::vector<std::unique_ptr<RendezvousServer>> servers;
  for (const char* key : {"the key of another job", kKey}) {
    addresses.push_back(*io::Address::tcp("127.0.0.1", test::freePort()));
    servers.push_back(valueOrThrow(RendezvousServer::start(
        *reactor, addresses, {key, {link::Purpose::kRendezvous, {"w0", 0}}}, 1, test::kHangs, patience())));
  }
  auto client = RendezvousClient::connect(test::meetingAt(addresses), credentialsOf("w0", 0), patience());
  ASSERT_TRUE(client.ok()) << client.status().toString();
  EXPECT_EQ(1U, valueOrThrow((*client)->exchange(1, {"unix:w0"}, patience())).size());
  for (auto& server : servers) server->stop();
  reactor.stop();
}

// Here and below, the other ranks must arrive before the join timeout.
TEST(Rendezvous, namesTheRanksThatDidNotArrive) {
  EXPECT_TRUE(test::withLongerLimits(1s, [](Duration limit) {
    Meeting meeting(4, limit);
    auto results = allAtOnce(
        {[&] { return meeting.meet("w0", 0, 4).status(); }, [&] { return meeting.meet("w2", 2, 4).status(); }});
    const std::string told = " of 4 did not arrive within the join timeout of " + toText(limit);
    EXPECT_TRUE(areTold(results, Code::kDeadlineExceeded, told));
    return areTold(results, Code::kDeadlineExceeded, "rank 1, 3" + told);
  }));
}

// One that has come and does not say what it wants has not arrived.
TEST(Rendezvous, namesARankThatConnectedAndSaidNothing) {
  EXPECT_TRUE(test::withLongerLimits(1s, [](Duration limit) {
    Meeting meeting(2, limit);
    auto silent = meeting.connect("w1", 1);
    const Status told = meeting.meet("w0", 0, 2).status();
    EXPECT_TRUE(isTold(told, Code::kDeadlineExceeded, "1 of 2 did not arrive"));
    return isTold(told, Code::kDeadlineExceeded, "rank 1 of 2 did not arrive");
  }));
}

TEST(Rendezvous, namesWhoCouldNotConnectToTheOthers) {
  EXPECT_TRUE(test::withLongerLimits(1s, [](Duration limit) {
    Meeting meeting(2, limit);
    auto first = meeting.connect("w0", 0), second = meeting.connect("w1", 1);
    auto exchanged = allAtOnce({[&] { return first->exchange(2, {}, patience()).status(); },
                                [&] { return second->exchange(2, {}, patience()).status(); }});
    if (auto got = areTold(exchanged, Code::kOk, ""); !got) return got;
    const Status told = first->ready(patience());
    EXPECT_TRUE(isTold(told, Code::kDeadlineExceeded, "1 could not connect to all others"));
    return isTold(told, Code::kDeadlineExceeded, "rank 1 could not connect to all others");
  }));
}

TEST(Rendezvous, tellsAllWhenANameIsUsedTwice) {
  Meeting meeting(3);
  auto results =
      allAtOnce({[&] { return meeting.meet("w0", 0, 3).status(); }, [&] { return meeting.meet("same", 1, 3).status(); },
                 [&] { return meeting.meet("same", 2, 3).status(); }});
  for (const Status& status : results)
    expectTold(status, Code::kInvalidArgument, "the name 'same' is used twice, by rank 1 and rank 2");
}

TEST(Rendezvous, tellsAllWhenARankIsStartedTwice) {
  Meeting meeting(3);
  test::Gate firstIsIn;
  auto results = allAtOnce({[&] { return meeting.meet("w0", 0, 3).status(); },
                            [&] {
                              auto client = meeting.connect("first", 1);
                              firstIsIn.open();
                              return client->exchange(3, {}, patience()).status();
                            },
                            [&] {
                              firstIsIn.wait();
                              return meeting.meet("second", 1, 3).status();
                            }});
  // Connecting does not wait until the server knows of it: either of the two may have been the first there.
  for (const Status& status : {results[1], results[2]})
    expectTold(status, Code::kFailedPrecondition, "rank 1 was started twice");
  // Rank 0 may have come when it was over already.
  EXPECT_FALSE(results[0].ok());
}

TEST(Rendezvous, ReportsToAllThatTheNumbersOfServersDiffer) {
  Meeting meeting({3, 1});
  auto results = allAtOnce(
      {[&] { return meeting.meet("w0", 0, {3, 1}).status(); }, [&] { return meeting.meet("w1", 1, {3, 2}).status(); }});
  for (const Status& status : results)
    expectTold(
        status, Code::kFailedPrecondition,
        "worker 'w1' (rank 1) was started for a job of 3 workers with servers from rank 1 on and rank 0 for one of "
        "3 workers with servers from rank 2 on");
}

TEST(Rendezvous, tellsAllWhenWorldSizesDiffer) {
  Meeting meeting(2);
  auto results =
      allAtOnce({[&] { return meeting.meet("w0", 0, 2).status(); }, [&] { return meeting.meet("w1", 1, 3).status(); }});
  for (const Status& status : results)
    expectTold(status, Code::kFailedPrecondition,
               "worker 'w1' (rank 1) was started for a job of 3 workers and rank 0 for one of 2");
}

TEST(Rendezvous, refusesARankOutsideOfTheWorldAndGoesOn) {
  Meeting meeting(1);
  expectTold(meeting.meet("w1", 1, 2).status(), Code::kInvalidArgument, "rank 1 is not in this job of 1 workers");
  EXPECT_TRUE(meeting.meet("w0", 0, 1).ok());
}

TEST(Rendezvous, tellsAllWhenARankDiesWhileTheyGather) {
  Meeting meeting(3);
  auto results = allAtOnce({[&] { return meeting.meet("w0", 0, 3).status(); },
                            [&] {
                              auto dying = meeting.connect("dying", 1);
                              dying.reset();
                              return Status();
                            }});
  expectTold(results[0], Code::kPeerLost, "worker 'dying' (rank 1) was lost before all had joined");
  EXPECT_EQ("dying", results[0].worker());
}

TEST(Rendezvous, tellsAllWhenARankDiesWhileTheyConnect) {
  Meeting meeting(2);
  auto first = meeting.connect("w0", 0), dying = meeting.connect("dying", 1);
  auto exchanged = allAtOnce({[&] { return first->exchange(2, {}, patience()).status(); },
                              [&] { return dying->exchange(2, {}, patience()).status(); }});
  for (const Status& status : exchanged) ASSERT_TRUE(status.ok());
  dying.reset();
  Status status = first->ready(patience());
  expectTold(status, Code::kPeerLost, "worker 'dying' (rank 1) was lost before all had joined");
}

// All three of a job get the roster.
void exchangeAll(RendezvousClient& first, RendezvousClient& second, RendezvousClient& third) {
  auto exchanged = allAtOnce({[&] { return first.exchange(3, {}, patience()).status(); },
                              [&] { return second.exchange(3, {}, patience()).status(); },
                              [&] { return third.exchange(3, {}, patience()).status(); }});
  for (const Status& status : exchanged) ASSERT_TRUE(status.ok()) << status.toString();
}

TEST(Rendezvous, tellsAllWhomAWorkerCouldNotConnectTo) {
  Meeting meeting(3);
  auto first = meeting.connect("w0", 0), second = meeting.connect("w1", 1), deaf = meeting.connect("deaf", 2);
  exchangeAll(*first, *second, *deaf);
  Status why = peerLost("deaf", "worker 'deaf' (rank 2) cannot be connected to: it refused");
  auto told = allAtOnce({[&] { return first->giveUp(why, patience()); }, [&] { return second->ready(patience()); },
                         [&] { return deaf->ready(patience()); }});
  for (const Status& status : told) {
    expectTold(status, Code::kPeerLost, "worker 'w0' (rank 0) cannot join: " + why.message());
    EXPECT_EQ("deaf", status.worker());
  }
}

// Who was left because of a loss is not the one to name, also by those who only see that it is not there any more.
TEST(Rendezvous, namesTheFirstLossToWhoGivesUpForAConsequence) {
  Meeting meeting(3);
  auto first = meeting.connect("w0", 0), second = meeting.connect("w1", 1), dying = meeting.connect("dying", 2);
  exchangeAll(*first, *second, *dying);
  dying.reset();
  expectTold(first->ready(patience()), Code::kPeerLost, "worker 'dying' (rank 2) was lost before all had joined");
  Status consequence = peerLost("w0", "worker 'w0' (rank 0) cannot be connected to");
  expectTold(second->giveUp(consequence, patience()), Code::kPeerLost, "worker 'dying' (rank 2) was lost");
}

// Somebody else knows that a worker which never came is why the others leave.
TEST(Rendezvous, namesWhatIsBehindALossInPlaceOfWhatItSaw) {
  Meeting meeting(3);
  const Status behind = peerLost("rank 2", "rank 2 was killed");
  meeting.server->setCause([&](const Status& why) {
    expectTold(why, Code::kPeerLost, "worker 'leaving' (rank 1) was lost");
    return behind;
  });
  auto first = meeting.connect("w0", 0), leaving = meeting.connect("leaving", 1);
  leaving.reset();
  const Status told = first->exchange(3, {}, patience()).status();
  EXPECT_EQ(behind.toString(), told.toString());
  EXPECT_EQ("rank 2", told.worker());
}

TEST(Rendezvous, failsForAllWithTheFirstReason) {
  Meeting meeting(3);
  auto first = meeting.connect("w0", 0);
  const Status why = peerLost("rank 2", "rank 2 was killed");
  EXPECT_EQ(why.toString(), meeting.server->fail(why).toString());
  EXPECT_EQ(why.toString(), meeting.server->fail(peerLost("w1", "a later reason")).toString());
  for (const Status& told : {first->exchange(3, {}, patience()).status(), meeting.meet("late", 1, 3).status()})
    EXPECT_EQ(why.toString(), told.toString());
}

// On a busy machine rank 0's own wait may end before its reactor looks at the clock. It knows who is late all the same.
TEST(Rendezvous, namesTheLateRanksIfTheReactorIsLateToo) {
  const io::Address address = *io::Address::tcp("127.0.0.1", test::freePort());
  test::ReactorThread reactor;
  test::Gate held, letGo;
  reactor->at(Clock::now(), [&] {
    held.open();
    letGo.wait();
  });
  held.wait();
  auto server = valueOrThrow(RendezvousServer::start(*reactor, {address}, credentialsOf("w0", 0), 2, 3s, Clock::now()));
  expectTold(server->fail(deadlineExceeded("the wait is over")), Code::kDeadlineExceeded,
             "rank 0, 1 of 2 did not arrive within the join timeout of 3 s");
  letGo.open();
  server->stop();
  reactor.stop();
}

// The roster and the bad news that follows it may come in one piece.
TEST(Rendezvous, losesNoNewsThatComeTogether) {
  for (int round = 0; round < 30; ++round) {
    Meeting meeting(2);
    auto first = meeting.connect("w0", 0), dying = meeting.connect("dying", 1);
    std::thread thread([&] {
      dying->exchange(2, {}, patience()).status().ignore();
      dying.reset();
    });
    Result<Roster> roster = first->exchange(2, {}, patience());
    thread.join();
    Status status = roster.ok() ? first->ready(patience()) : roster.status();
    expectTold(status, Code::kPeerLost, "worker 'dying' (rank 1) was lost");
  }
}

TEST(Rendezvous, turnsAwayWhoComesTooLate) {
  Meeting meeting(1);
  auto only = meeting.connect("w0", 0);
  ASSERT_TRUE(only->exchange(1, {}, patience()).ok());
  ASSERT_TRUE(only->ready(patience()).ok());
  expectTold(meeting.meet("late", 0, 1).status(), Code::kFailedPrecondition, "this job has begun without you");
}

TEST(Rendezvous, tellsWhoComesAfterTheFailureWhyThereIsNoJob) {
  Meeting meeting(3);
  auto first = meeting.connect("w0", 0), dying = meeting.connect("dying", 1);
  dying.reset();
  expectTold(first->exchange(3, {}, patience()).status(), Code::kPeerLost, "worker 'dying' (rank 1) was lost");
  auto late = std::async(std::launch::async, [&] { return meeting.meet("late", 2, 3).status(); });
  meeting.server->tellLateComers(patience());  // returns when rank 2 has come
  expectTold(late.get(), Code::kPeerLost, "worker 'dying' (rank 1) was lost");
}

// Rank 2 was started long before the server, and would leave before the server's own time limit.
TEST(Rendezvous, namesTheMissingRankWithinTheTimeLimitThatEndsFirst) {
  EXPECT_TRUE(test::withLongerLimits(2s, [](Duration limit) {
    Meeting meeting(3);
    auto first = meeting.connect("w0", 0), early = meeting.connect("early", 2);
    auto told = allAtOnce({[&] { return first->exchange(3, {}, patience()).status(); },
                           [&] { return early->exchange(3, {}, Clock::now() + limit).status(); }});
    EXPECT_TRUE(areTold(told, Code::kDeadlineExceeded, " of 3 did not arrive"));
    return areTold(told, Code::kDeadlineExceeded, "rank 1 of 3 did not arrive");
  }));
}

TEST(Rendezvous, waitsForLateComersNoLongerThanItsLimit) {
  Meeting meeting(3);
  meeting.connect("dying", 1).reset();
  meeting.server->tellLateComers(Clock::now() + 20ms);
  SUCCEED() << "it ends";
}

TEST(Rendezvous, waitsForLateComersUntilItIsInterrupted) {
  Meeting meeting(3);
  meeting.connect("dying", 1).reset();
  const io::Fd event(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  io::Interruption ended(event.get(), [] { return true; });
  meeting.server->tellLateComers(kNever);
  EXPECT_TRUE(ended.came());
}

TEST(Rendezvous, goesOnWhileStrangersSendGarbage) {
  Meeting meeting(2);
  std::atomic<bool> over = false;
  std::thread stranger([&] {
    std::string http = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
    while (!over.load()) {
      auto fd = io::connectTo(meeting.address, patience());
      if (!fd.ok()) break;
      io::writeAll(fd->get(), std::as_bytes(std::span(http)), patience()).ignore();
      std::array<std::byte, 4096> answer;
      while (io::waitFor(fd->get(), POLLIN, patience()) && ::read(fd->get(), answer.data(), answer.size()) > 0) {}
    }
  });
  // One that holds its connection open and says nothing keeps nobody waiting either.
  auto silent = valueOrThrow(io::connectTo(meeting.address, patience()));
  auto results =
      allAtOnce({[&] { return meeting.meet("w0", 0, 2).status(); }, [&] { return meeting.meet("w1", 1, 2).status(); }});
  over.store(true);
  stranger.join();
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.toString();
}

TEST(Rendezvous, endsForAllWhenAMemberTalksNonsense) {
  Meeting meeting(2);
  auto dialed = link::dial(meeting.address, credentialsOf("odd", 1), patience());
  ASSERT_TRUE(dialed.ok());
  for (auto message : {encodeStep(Step::kGo)})
    ASSERT_TRUE(
        io::writeAll(dialed->stream, wire::frameFront(wire::FrameKind::kMessage, 1, message, {}), patience()).ok());
  expectTold(meeting.meet("w0", 0, 2).status(), Code::kDataLoss, "rank 1 sent a message out of turn");
}

TEST(Rendezvous, namesThePortThatIsInUse) {
  Meeting meeting(1);
  test::ReactorThread reactor;
  Status second =
      RendezvousServer::start(*reactor, {meeting.address}, credentialsOf("w0", 0), 1, test::kHangs, patience())
          .status();
  expectTold(second, Code::kFailedPrecondition, meeting.address.toString() + " is in use");
}

TEST(RendezvousClient, namesTheMasterThatCannotBeReached) {
  io::Address nobody = *io::Address::tcp("127.0.0.1", test::freePort());
  Status status =
      RendezvousClient::connect(test::meetingAt({nobody}), credentialsOf("w1", 1), Clock::now() + 50ms).status();
  expectTold(status, Code::kDeadlineExceeded, "the master at " + nobody.toString() + " cannot be reached");
}

TEST(RendezvousClient, saysAtOnceThatItsKeyIsAnother) {
  Meeting meeting(2);
  Status status = RendezvousClient::connect(test::meetingAt({meeting.address}),
                                            {"another key", {link::Purpose::kRendezvous, {"w1", 1}}}, patience())
                      .status();
  EXPECT_EQ(Code::kUnauthenticated, status.code());
}

TEST(RendezvousClient, saysThatRankZeroWasLost) {
  Meeting meeting(2);
  auto client = meeting.connect("w1", 1);
  meeting.server->stop();
  Status status = client->exchange(2, {}, patience()).status();
  expectTold(status, Code::kPeerLost, "worker 'w0' (rank 0), where the workers meet, was lost before all had joined");
  EXPECT_EQ("w0", status.worker());
}

// Whom it cannot connect to may have left because rank 0 is gone.
TEST(RendezvousClient, namesRankZeroWhenThatIsLostToAWorkerThatGivesUpForAnotherReason) {
  Meeting meeting(2);
  auto client = meeting.connect("w1", 1);
  meeting.server->stop();
  Status why = client->giveUp(peerLost("w2", "worker 'w2' (rank 2) cannot be connected to"), patience());
  expectTold(why, Code::kPeerLost, "worker 'w0' (rank 0), where the workers meet, was lost before all had joined");
  EXPECT_EQ("w0", why.worker());
}

TEST(RendezvousClient, keepsItsOwnReasonWhenRankZeroSaysNothing) {
  io::Address silent = *io::Address::tcp("127.0.0.1", test::freePort());
  test::ReactorThread reactor;
  std::vector<io::Stream> held;
  link::Acceptor::Host host;
  host.check = [](const link::Hello&) { return Status(); };
  host.accept = [&](io::Stream stream, const link::Hello&) { held.push_back(std::move(stream)); };
  auto acceptor = valueOrThrow(
      link::Acceptor::start(*reactor, valueOrThrow(io::listenOn(silent)), credentialsOf("w0", 0), std::move(host)));
  auto client = valueOrThrow(RendezvousClient::connect(test::meetingAt({silent}), credentialsOf("w1", 1), patience()));
  Status why = client->giveUp(invalidArgument("its own"), Clock::now() + 50ms);
  expectTold(why, Code::kInvalidArgument, "its own");
  acceptor.reset();
  reactor.stop();
}

// Rank 0 has told why there is no job, and is gone when this worker gives up for a consequence of that.
TEST(RendezvousClient, readsWhatRankZeroSaidBeforeItWent) {
  Meeting meeting(3);
  auto client = meeting.connect("w1", 1), last = meeting.connect("w2", 2);
  meeting.connect("dying", 0).reset();
  Status told = last->exchange(3, {}, patience()).status();  // the last of those that rank 0 tells
  expectTold(told, Code::kPeerLost, "worker 'dying' (rank 0) was lost before all had joined");
  meeting.server->stop();
  Status why = client->giveUp(peerLost("w2", "worker 'w2' (rank 2) cannot be connected to"), patience());
  EXPECT_EQ(told.toString(), why.toString());
}

TEST(RendezvousClient, waitsNoLongerThanItsDeadline) {
  Meeting meeting(2);
  auto client = meeting.connect("w0", 0);
  EXPECT_EQ(Code::kDeadlineExceeded, client->exchange(2, {}, Clock::now() + 50ms).status().code());
}

}  // namespace
}  // namespace treadle::cluster::rendezvous_test
