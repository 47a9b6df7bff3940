#include "treadle/core/cluster/admission.h"

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/link/connection.h"

namespace treadle::cluster {

// One lock guards it all. The membership and the keeper call back here, and are called under it only by what does not:
// the keeper's own lock comes after this one.
class Admission::Core final : public Doorkeeper, public std::enable_shared_from_this<Core> {
 public:
  Core(io::Reactor& reactor, Membership& membership, Keeper& keeper, int nextRank, RosterOf roster, const Costs& costs)
      : reactor_(reactor),
        membership_(membership),
        keeper_(keeper),
        rosterOf_(std::move(roster)),
        costs_(costs),
        nextRank_(nextRank) {}

  static Status check(const link::Hello& hello);
  void accept(io::Stream stream, const link::Hello& hello);
  void onAdmitted(int rank, int by) override;
  void onConnected(int rank, int by) override;
  void onLost(int rank) override;
  int stop(const Status& why);

 private:
  // kWaiting: for its turn. kRanked: it was given a rank, and is to say where it listens. kAnnounced: all are told of
  // it. kConnecting: it and all others connect to each other. kReady: it has, and is connected to. kOver: it is in, or
  // failed.
  enum class Stage { kWaiting, kRanked, kAnnounced, kConnecting, kReady, kOver };
  struct Guest;
  using GuestPtr = std::shared_ptr<Guest>;

  void onMessage(Guest& guest, Bytes payload);
  void onClosed(Guest& guest, const Status& why);
  Status onRegister(Guest& guest, Registration registration);
  Status onReady(Guest& guest);
  void next();
  GuestPtr takeNext();
  Status begin(const GuestPtr& guest);
  void connectIfAllKnow() TREADLE_REQUIRES(mutex_);
  void welcomeIfAllConnected(MutexLock& lock) TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;
  void fail(Guest& guest, const Status& why);
  bool turnAway(Guest& guest, const Status& why);
  Status whetherFree(const std::string& name) const;
  void dropFinished();
  static void say(Guest& guest, Bytes message);

  io::Reactor& reactor_;
  Membership& membership_;
  Keeper& keeper_;
  const RosterOf rosterOf_;
  const Costs costs_;
  mutable Mutex mutex_;
  int nextRank_ TREADLE_GUARDED_BY(mutex_);
  Status stopped_ TREADLE_GUARDED_BY(mutex_);
  std::deque<GuestPtr> waiting_ TREADLE_GUARDED_BY(mutex_);
  GuestPtr current_ TREADLE_GUARDED_BY(mutex_);
  // Ranks that have not said that they know of the current one; that they have connected to it.
  std::set<int> unknowing_ TREADLE_GUARDED_BY(mutex_), unconnected_ TREADLE_GUARDED_BY(mutex_);
  std::set<GuestPtr> guests_ TREADLE_GUARDED_BY(mutex_);
  std::vector<GuestPtr> finished_ TREADLE_GUARDED_BY(mutex_);  // whose connections are closed
};

// Kept by the core until its connection is closed and nobody reads from that.
struct Admission::Core::Guest final : link::ConnectionSink, std::enable_shared_from_this<Guest> {
  Guest(std::weak_ptr<Core> core, std::string guestName) : server(std::move(core)), name(std::move(guestName)) {}

  void onMessage(link::Connection&, link::Message message) override {
    if (auto core = server.lock()) core->onMessage(*this, message.payload);
  }
  void onLeave(link::Connection&, std::string) override {}
  void onClosed(link::Connection&, const Status& why) override {
    if (auto core = server.lock()) core->onClosed(*this, why);
  }
  WorkerInfo worker() const { return {name, rank}; }

  const std::weak_ptr<Core> server;
  const std::string name;
  std::shared_ptr<link::Connection> connection;
  // Guarded by the core's lock:
  Stage stage = Stage::kWaiting;
  int rank = kAnyRank;
  io::Reactor::TimerId timer = 0;
};

Status Admission::Core::check(const link::Hello& hello) {
  if (hello.purpose != link::Purpose::kRendezvous) return failedPrecondition("workers only meet at this address");
  if (hello.worker.rank == kAnyRank) return {};
  return failedPrecondition(
      "this job is open and gives out its ranks itself: join it with the world size kOpenWorld "
      "and the rank kAnyRank (TREADLE_WORLD_SIZE=open, TREADLE_RANK=any)");
}

void Admission::Core::accept(io::Stream stream, const link::Hello& hello) {
  dropFinished();
  auto guest = std::make_shared<Guest>(weak_from_this(), hello.worker.name);
  link::ConnectionOptions options{.limits = rendezvousLimits()};
  {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return;
    auto connection =
        link::Connection::start(reactor_, std::move(stream), link::Connection::Kind::kServing, options, *guest);
    if (!connection.ok()) return logWarn(membership_.self().name, connection.status().message());
    guest->connection = std::move(*connection);
    guests_.insert(guest);
    waiting_.push_back(guest);
  }
  next();
}

// Their connections are closed: nobody reads from them, or is about to return.
void Admission::Core::dropFinished() {
  std::vector<GuestPtr> finished;
  {
    MutexLock lock(mutex_);
    finished.swap(finished_);
  }
  for (const GuestPtr& guest : finished) guest->connection->awaitReader();
}

// The first of those that wait to whom nothing stands in the way.
void Admission::Core::next() {
  while (GuestPtr guest = takeNext()) {
    Status begun = begin(guest);
    if (begun.ok()) return;
    turnAway(*guest, begun);
  }
}

Admission::Core::GuestPtr Admission::Core::takeNext() {
  MutexLock lock(mutex_);
  if (current_ || waiting_.empty() || !stopped_.ok()) return nullptr;
  current_ = std::move(waiting_.front());
  waiting_.pop_front();
  return current_;
}

// OK too when it has gone meanwhile: then whoever noticed goes on to the next.
Status Admission::Core::begin(const GuestPtr& guest) {
  TREADLE_RETURN_IF_ERROR(whetherFree(guest->name));
  MutexLock lock(mutex_);
  if (guest->stage != Stage::kWaiting) return {};
  if (nextRank_ >= kMaxWorldSize)
    return resourceExhausted("this job has given out all of its " + std::to_string(kMaxWorldSize) +
                             " ranks; start a new one");
  guest->rank = nextRank_++;
  guest->stage = Stage::kRanked;
  guest->timer = reactor_.at(deadlineAfter(kAdmissionTime), [weak = std::weak_ptr(guest), core = weak_from_this()] {
    auto self = core.lock();
    if (auto slow = weak.lock(); slow && self)
      self->fail(*slow, deadlineExceeded("it did not join within " + toText(kAdmissionTime) + " of its turn"));
  });
  say(*guest, encodeRank(Step::kRank, guest->rank));
  return {};
}

Status Admission::Core::whetherFree(const std::string& name) const {
  for (int rank : membership_.living())
    if (WorkerInfo other = membership_.info(rank); other.name == name)
      return invalidArgument("the name '" + name + "' is used already, by rank " + std::to_string(other.rank) +
                             "; give each worker a name of its own");
  return {};
}

void Admission::Core::onMessage(Guest& guest, Bytes payload) {
  Result<RendezvousMessage> message = parseRendezvous(payload);
  Status status = message.status();
  if (message.ok() && message->step == Step::kRegister) {
    status = onRegister(guest, std::move(message->registration));
  } else if (message.ok() && message->step == Step::kReady) {
    status = onReady(guest);
  } else if (message.ok() && message->step == Step::kFail) {
    status = message->failure.withContext(link::describe(guest.worker()) + " cannot join");
  } else if (message.ok()) {
    status = dataLoss("it sent a message out of turn at the rendezvous");
  }
  if (!status.ok()) fail(guest, status);
}

Status Admission::Core::onRegister(Guest& guest, Registration registration) {
  MutexLock lock(mutex_);
  if (guest.stage != Stage::kRanked) return dataLoss("it registered out of turn");
  guest.stage = Stage::kAnnounced;
  std::vector<int> present = membership_.present();
  unknowing_ = unconnected_ = {present.begin(), present.end()};
  // Under the lock, so that nobody hears that it is out before they have heard that it comes.
  keeper_.announce({guest.worker(), std::move(registration.addresses)});
  return {};
}

void Admission::Core::onAdmitted(int rank, int by) {
  MutexLock lock(mutex_);
  if (!current_ || current_->rank != rank) return;
  unknowing_.erase(by);
  connectIfAllKnow();
}

void Admission::Core::connectIfAllKnow() {
  if (!current_ || current_->stage != Stage::kAnnounced || !unknowing_.empty()) return;
  current_->stage = Stage::kConnecting;
  std::vector<int> ranks = membership_.present();
  ranks.push_back(current_->rank);
  // Under the lock: that one of them is gone is told afterwards.
  say(*current_, encodePresent({membership_.self().rank, rosterOf_(ranks), costs_}));
}

Status Admission::Core::onReady(Guest& guest) {
  {
    MutexLock lock(mutex_);
    if (guest.stage != Stage::kConnecting) return dataLoss("it was ready before its turn");
    guest.stage = Stage::kReady;
    welcomeIfAllConnected(lock);
  }
  return {};
}

void Admission::Core::onConnected(int rank, int by) {
  MutexLock lock(mutex_);
  if (!current_ || current_->rank != rank) return;
  unconnected_.erase(by);
  welcomeIfAllConnected(lock);
}

// It is in for all before it goes on: its first messages find it known, and calls to it find their connection.
void Admission::Core::welcomeIfAllConnected(MutexLock& lock) {
  if (!current_ || current_->stage != Stage::kReady || !unconnected_.empty()) return;
  GuestPtr guest = std::move(current_);
  current_.reset();
  guest->stage = Stage::kOver;
  reactor_.cancel(guest->timer);
  // Under the lock: who takes over has it among the members.
  keeper_.welcome(guest->rank);
  lock.unlock();
  logInfo(membership_.self().name, link::describe(guest->worker()) + " has joined");
  say(*guest, encodeStep(Step::kGo));
  next();
}

void Admission::Core::onLost(int rank) {
  GuestPtr lost;
  {
    MutexLock lock(mutex_);
    if (current_ && current_->rank == rank) lost = current_;
    unknowing_.erase(rank);
    unconnected_.erase(rank);
    if (!lost && current_ && (current_->stage == Stage::kConnecting || current_->stage == Stage::kReady))
      say(*current_, encodeRank(Step::kGone, rank));
    if (!lost && current_ && current_->stage == Stage::kReady) return welcomeIfAllConnected(lock);
    if (!lost) return connectIfAllKnow();
  }
  std::optional<Membership::Loss> loss = membership_.lossOf(rank);
  fail(*lost, loss ? loss->why : cancelled("it left"));
}

void Admission::Core::onClosed(Guest& guest, const Status& why) {
  fail(guest, peerLost(guest.name, "'" + guest.name + "' was lost before it had joined: " + why.message()));
  MutexLock lock(mutex_);
  auto place = guests_.extract(guest.shared_from_this());
  if (!place.empty()) finished_.push_back(std::move(place.value()));
}

void Admission::Core::fail(Guest& guest, const Status& why) {
  if (turnAway(guest, why)) next();
}

// Once for each guest; then false. It may be gone, which its connection tells.
bool Admission::Core::turnAway(Guest& guest, const Status& why) {
  Stage stage{};
  {
    MutexLock lock(mutex_);
    stage = std::exchange(guest.stage, Stage::kOver);
    if (stage == Stage::kOver) return false;
    reactor_.cancel(guest.timer);
    if (current_.get() == &guest) current_.reset();
    std::erase_if(waiting_, [&](const GuestPtr& one) { return one.get() == &guest; });
  }
  logWarn(membership_.self().name, "'" + guest.name + "' did not join: " + why.message());
  say(guest, encodeFailure(why));
  if (stage == Stage::kAnnounced || stage == Stage::kConnecting || stage == Stage::kReady)
    membership_.lose(guest.rank, why);
  return true;
}

// One that is gone meanwhile is noticed by its connection.
void Admission::Core::say(Guest& guest, Bytes message) {
  guest.connection->send(link::Subject::kCluster, message, {}, link::SendMode::kUrgent, kNever).ignore();
}

int Admission::Core::stop(const Status& why) {
  std::set<GuestPtr> guests;
  {
    MutexLock lock(mutex_);
    if (stopped_.ok()) stopped_ = why;
    guests = guests_;
  }
  for (const GuestPtr& guest : guests) {
    fail(*guest, why);
    guest->connection->leave("", Clock::now());
    guest->connection->close(why);
    guest->connection->awaitReader();
  }
  dropFinished();
  MutexLock lock(mutex_);
  return nextRank_;
}

Admission::Admission(std::shared_ptr<Core> core, Acceptors acceptors)
    : core_(std::move(core)), acceptors_(std::move(acceptors)), address_(acceptors_.front()->address()) {}

Admission::~Admission() { stop(cancelled("this worker has left its job")); }

int Admission::stop(const Status& why) {
  acceptors_.clear();
  return core_->stop(why);
}

Result<std::unique_ptr<Admission>> Admission::start(io::Reactor& reactor, const std::vector<io::Address>& addresses,
                                                    const link::Credentials& credentials, Membership& membership,
                                                    Keeper& keeper, int nextRank, RosterOf roster, const Costs& costs) {
  auto core = std::make_shared<Core>(reactor, membership, keeper, nextRank, std::move(roster), costs);
  keeper.setDoorkeeper(core);
  Result<Acceptors> acceptors = acceptAtMeeting(reactor, addresses, credentials, [&core] {
    link::Acceptor::Host host;
    host.check = &Core::check;
    host.accept = [core](io::Stream stream, link::Hello hello) { core->accept(std::move(stream), hello); };
    return host;
  });
  if (!acceptors.ok()) return acceptors.status().withContext("this worker cannot let others into the job");
  return std::unique_ptr<Admission>(new Admission(std::move(core), std::move(*acceptors)));  // NOLINT: private
}

}  // namespace treadle::cluster
