// What a program can say to call a function of another worker, and what it gets back.

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tests/core/worker/here.h"

namespace treadle::calls_test {
namespace {

using test::contains;
using test::WorkerJob;
using namespace std::chrono_literals;

struct Point {
  int x = 0;
  double y = 0;
  std::string label;
  bool operator==(const Point&) const = default;
};
TREADLE_FIELDS(Point, x, y, label)

int add(int a, int b) { return a + b; }
void count(test::Here<test::Counter> counter) { counter->add(); }
std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}
Point mirrored(Point point) { return {-point.x, -point.y, point.label + "'"}; }
std::map<std::string, std::vector<Point>> byLabel(const std::vector<Point>& points) {
  std::map<std::string, std::vector<Point>> sorted;
  for (const Point& point : points) sorted[point.label].push_back(point);
  return sorted;
}
std::pair<std::optional<int>, std::tuple<bool, float, uint8_t>> mixed(std::optional<int> number, bool flag) {
  return {number, {!flag, 0.5F, uint8_t{200}}};
}
std::string served(CallContext& call, int number) {
  return call.worker().self().name + " serves " + call.caller().name + " " + std::to_string(number);
}
Duration timeLeft(CallContext& call) {
  return call.deadline() == kNever ? Duration::max() : call.deadline() - Clock::now();
}
int64_t millisecondsLeft(CallContext& call) {
  Duration left = timeLeft(call);
  return left == Duration::max() ? -1 : std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
}
// Answers when somebody else's answer is there, and keeps no thread for it.
Future<int> addThere(CallContext& call, const std::string& where, int a, int b) {
  return call.worker().async<&add>(where, a, b).then([](int sum) { return sum + 1000; });
}
Future<void> countThere(CallContext& call, const std::string& where, test::Here<test::Counter> counter) {
  return call.worker().async<&count>(where, counter);
}
// The same answer for all who ask, and for whoever looks at `kept`.
using Numbers = std::vector<int>;
Future<Numbers> sharedAnswer(CallContext& call, test::Here<Future<Numbers>> kept) {
  Future<Numbers>& future = *kept.operator->();
  if (!future.valid()) future = call.worker().spawn([] { return Numbers{1, 2, 3}; });
  return future;
}
// What a function does when it has returned: after its answer, or to have it.
struct Afterwards {
  test::Gate go;
  test::Counter done;
  Promise<int> answer;
};
rpc::AnswerThen<int> answerAndGoOn(int number, test::Here<Afterwards> afterwards) {
  Promise<int> answer;
  answer.set(number);
  return {answer.future(), [afterwards] {
            blocking([&] { afterwards->go.wait(); });
            afterwards->done.add();
            throw std::runtime_error("the answer has left");
          }};
}
rpc::AnswerThen<int> goOnAndAnswer(int number, test::Here<Afterwards> afterwards) {
  return {afterwards->answer.future(), [number, afterwards] { afterwards->answer.set(number); }};
}
rpc::AnswerThen<int> goOnAndFail(test::Here<Afterwards> afterwards) {
  return {afterwards->answer.future(), [] { throw std::runtime_error("no answer has left"); }};
}
int overloaded(int number) { return number; }
[[maybe_unused]] int overloaded(const std::string&) { return 0; }

class Account {
 public:
  Account(std::string owner, int64_t cents, double rate) : owner_(std::move(owner)), cents_(cents), rate_(rate) {}
  void pay(int64_t cents) { cents_ += cents; }
  int64_t balance() const noexcept { return cents_; }
  double interest() const { return static_cast<double>(cents_) * rate_; }
  std::string whose(CallContext& call) { return owner_ + "'s, at " + call.worker().self().name; }
  Future<int64_t> doubled(CallContext& call) {
    return call.worker().spawn([this] { return 2 * cents_; });
  }

 private:
  const std::string owner_;
  int64_t cents_;
  const double rate_;
};

Functions functions() {
  Functions all;
  all.add<&add>("add").add<&count>("count").add<&join>("join").add<&mirrored>("mirrored").add<&byLabel>("byLabel");
  all.add<&mixed>("mixed").add<&served>("served").add<&millisecondsLeft>("millisecondsLeft");
  all.add<&sharedAnswer>("sharedAnswer");
  all.add<&answerAndGoOn>("answerAndGoOn").add<&goOnAndAnswer>("goOnAndAnswer").add<&goOnAndFail>("goOnAndFail");
  all.add<&addThere>("addThere")
      .add<&countThere>("countThere")
      .addType<Account, std::string, int64_t, double>("Account");
  all.add<static_cast<int (*)(int)>(&overloaded)>("overloaded");
  all.add<&Account::pay>("pay").add<&Account::balance>("balance").add<&Account::interest>("interest");
  all.add<&Account::whose>("whose").add<&Account::doubled>("doubled");
  return all;
}

class Calls : public ::testing::Test {
 protected:
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker& a = job[0];
};

TEST_F(Calls, returnWhatTheFunctionReturnsThere) {
  EXPECT_EQ(5, a.call<&add>("b", 2, 3));
  EXPECT_EQ("x-y-z", a.call<&join>("b", std::vector<std::string>{"x", "y", "z"}, "-"));
  EXPECT_EQ((Point{-1, -2.5, "p'"}), a.call<&mirrored>("c", Point{1, 2.5, "p"}));
  EXPECT_EQ(7, (a.call<static_cast<int (*)(int)>(&overloaded)>("b", 7)));
}

TEST_F(Calls, carryContainersStructsAndWhatIsEmpty) {
  std::vector<Point> points = {{1, 1, "p"}, {2, 2, "q"}, {3, 3, "p"}};
  EXPECT_EQ(byLabel(points), a.call<&byLabel>("b", points));
  EXPECT_TRUE(a.call<&byLabel>("b", std::vector<Point>()).empty());
  EXPECT_EQ("", a.call<&join>("b", std::vector<std::string>(), ""));
  EXPECT_EQ(mixed(3, true), a.call<&mixed>("b", 3, true));
  EXPECT_EQ(mixed({}, false), a.call<&mixed>("b", std::nullopt, false));
  std::string bytes("\0\xff\n", 3);
  EXPECT_EQ(bytes, a.call<&join>("b", std::vector<std::string>{bytes}, ""));
}

TEST_F(Calls, carryMegabytesBothWays) {
  std::vector<std::string> words(2, std::string(2'000'000, 'w'));
  words[1].back() = '!';
  EXPECT_EQ(words[0] + words[1], a.call<&join>("b", words, ""));
}

TEST_F(Calls, takeAWorkersNameRankOrInfo) {
  EXPECT_EQ("b serves a 1", a.call<&served>("b", 1));
  EXPECT_EQ("b serves a 2", a.call<&served>(std::string("b"), 2));
  EXPECT_EQ("b serves a 3", a.call<&served>(1, 3));
  EXPECT_EQ("c serves a 4", a.call<&served>(a.peer("c"), 4));
  EXPECT_EQ("c serves b 5", job[1].call<&served>(job[1].peer(2), 5));
}

TEST_F(Calls, toOneselfWorkLikeOthers) {
  EXPECT_EQ("a serves a 1", a.call<&served>("a", 1));
  EXPECT_EQ(3, a.async<&add>(a.self(), 1, 2).wait());
  EXPECT_EQ(3, a.remote<&add>(0, 1, 2).toHere());
  RRef<Account> account = a.make<Account>("a", "me", 5, 0.1);
  EXPECT_EQ(5, account.call<&Account::balance>());
}

TEST_F(Calls, withoutAResultReturnWhenTheFunctionIsDone) {
  test::Counter counter;
  a.call<&count>("b", counter);
  EXPECT_EQ(1, counter.count());
  a.async<&count>("b", counter).wait();
  EXPECT_EQ(2, counter.count());
  a.remote<&count>("b", counter).toHere();
  EXPECT_EQ(3, counter.count());
}

TEST_F(Calls, captureTheirArgumentsBeforeTheyReturn) {
  std::vector<std::string> words = {"kept"};
  Future<std::string> future = a.async<&join>("b", words, "");
  words[0] = "changed";
  EXPECT_EQ("kept", future.wait());
  words[0] = "kept too";
  RRef<std::string> ref = a.remote<&join>("b", words, "");
  words[0] = "changed";
  EXPECT_EQ("kept too", ref.toHere());
}

TEST_F(Calls, byNameAloneAreTheSame) {
  EXPECT_EQ(5, (a.callNamed<int>("b", "add", 2, 3)));
  EXPECT_EQ(5, (a.asyncNamed<int>("b", "add", 2, 3).wait()));
  EXPECT_EQ(5, (a.remoteNamed<int>(1, "add", 2, 3).toHere()));
  test::Counter counter;
  a.callNamed<void>("b", "count", test::Here(counter));
  EXPECT_EQ(1, counter.count());
}

TEST_F(Calls, areAnsweredLaterByAFunctionThatReturnsAFuture) {
  EXPECT_EQ(1005, a.call<&addThere>("b", "c", 2, 3));
  EXPECT_EQ(1005, a.remote<&addThere>("b", "a", 2, 3).toHere());
  test::Counter counter;
  a.call<&countThere>("b", "c", counter);
  EXPECT_EQ(1, counter.count());
}

TEST_F(Calls, leaveTheFuturesOfTheirHandlersToOthersWhoHaveThem) {
  Future<Numbers> kept;
  EXPECT_EQ((Numbers{1, 2, 3}), a.call<&sharedAnswer>("b", test::Here(kept)));
  EXPECT_EQ((Numbers{1, 2, 3}), a.call<&sharedAnswer>("b", test::Here(kept)));
  EXPECT_EQ((Numbers{1, 2, 3}), a.remote<&sharedAnswer>("b", test::Here(kept)).toHere());
  EXPECT_EQ((Numbers{1, 2, 3}), kept.wait());
}

TEST_F(Calls, areAnsweredBeforeAFunctionGoesOnWhereTheAnswerIsThere) {
  Afterwards afterwards;
  EXPECT_EQ(7, a.call<&answerAndGoOn>("b", 7, test::Here(afterwards)));
  EXPECT_EQ(0, afterwards.done.count());
  afterwards.go.open();
  afterwards.done.waitFor(1);
  EXPECT_EQ(8, a.call<&goOnAndAnswer>("b", 8, test::Here(afterwards)));
  EXPECT_EQ(9, a.remote<&answerAndGoOn>("b", 9, test::Here(afterwards)).toHere());
  afterwards.done.waitFor(2);
  Afterwards fails;
  EXPECT_TRUE(contains(test::messageOf<RemoteError>([&] { a.call<&goOnAndFail>("b", test::Here(fails)); }),
                       "no answer has left"));
}

TEST_F(Calls, giveTheirHandlerTheTimeThatIsLeft) {
  int64_t byDefault = a.call<&millisecondsLeft>("b");
  EXPECT_GT(byDefault, 0);
  EXPECT_LE(byDefault, 60'000);
  int64_t asAsked = a.with({.timeout = 1h}).call<&millisecondsLeft>("b");
  EXPECT_GT(asAsked, 60'000);
  EXPECT_LE(asAsked, 3'600'000);
  EXPECT_EQ(-1, a.with({.timeout = kNoTimeout}).call<&millisecondsLeft>("b"));
}

TEST_F(Calls, makeObjectsAndCallTheirFunctions) {
  RRef<Account> account = a.make<Account>("b", "ann", 100, 0.5);
  EXPECT_EQ("b", account.owner().name);
  EXPECT_FALSE(account.isOwner());
  account.call<&Account::pay>(11);
  EXPECT_EQ(111, account.call<&Account::balance>());
  EXPECT_EQ(55.5, account.async<&Account::interest>().wait());
  EXPECT_EQ(111, account.remote<&Account::balance>().toHere());
  EXPECT_EQ("ann's, at b", account.call<&Account::whose>());
  EXPECT_EQ(222, account.call<&Account::doubled>());
}

TEST_F(Calls, continueWithWhatDependsOnThem) {
  Future<int> sum = a.async<&add>("b", 1, 2).then([this](int three) { return a.call<&add>("c", three, 4); });
  EXPECT_EQ(7, sum.wait());
  std::vector<Future<int>> many;
  for (int i = 0; i < 20; ++i) many.push_back(a.async<&add>(i % 3, i, 0));
  std::vector<int> expected(20);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(expected, whenAll(many).wait());
}

TEST_F(Calls, areCounted) {
  Metrics before = a.metrics(), there = job[1].metrics();
  for (int i = 0; i < 10; ++i) a.call<&add>("b", i, i);
  EXPECT_EQ(before.callsSent + 10, a.metrics().callsSent);
  EXPECT_TRUE(test::eventually([&] { return job[1].metrics().callsHandled == there.callsHandled + 10; }));
  EXPECT_EQ(0U, a.metrics().callsPending);
}

TEST_F(Calls, knowTheWorkersOfTheJob) {
  ASSERT_EQ(3U, a.peers().size());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.names()[static_cast<size_t>(rank)], a.peer(rank).name);
    EXPECT_EQ(rank, a.peer(job.names()[static_cast<size_t>(rank)]).rank);
    EXPECT_EQ(rank, job[static_cast<size_t>(rank)].self().rank);
  }
}

}  // namespace
}  // namespace treadle::calls_test
