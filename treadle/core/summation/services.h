#pragma once
// The summation services that this worker takes part in: brings connections, losses and failures elsewhere to them, and
// their failures to the other machines. One per worker, which owns it.
//
// Any thread; `check`, `attach`, `onMessage` and `onLost` come from reading threads and do not wait.

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "treadle/core/base/gate.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/summation/participant.h"
#include "treadle/core/summation/service_messages.h"
#include "treadle/core/summation/traffic.h"

namespace treadle::summation {

class Services final : public cluster::MessageHandler {
 public:
  // Connects to the worker with this rank for the service with this number, on the calling thread.
  using Dial = std::function<Result<io::Stream>(int rank, uint64_t number, TimePoint deadline)>;

  // `membership` must outlive it. `continueOn`, an executor's, runs what is made of the services' futures.
  Services(cluster::Membership& membership, io::ContinueOn continueOn, Dial dial);
  ~Services() override;

  // Ends participants whose last user must not wait for that, on a thread that polls or reads: in a task, and where the
  // executor has stopped, when the services are closed. May outlive them.
  class Keeper : public std::enable_shared_from_this<Keeper> {
   public:
    explicit Keeper(io::ContinueOn runOn) : runOn_(std::move(runOn)) {}

    void keep(std::shared_ptr<Participant> participant);
    // Waits for the end of those that are kept.
    void letGo();

   private:
    const io::ContinueOn runOn_;
    Mutex mutex_;
    std::vector<std::shared_ptr<Participant>> kept_ TREADLE_GUARDED_BY(mutex_);
  };
  const std::shared_ptr<Keeper>& keeper() const { return keeper_; }
  const io::ContinueOn& continueOn() const { return continueOn_; }

  // From now on connections for this service are taken; as Participant's constructor. Throws what `close` was given,
  // after it.
  std::shared_ptr<Participant> begin(uint64_t number, std::vector<WorkerInfo> machines, size_t workers, Machine self,
                                     Duration timeout, Bandwidths bandwidths = {}, std::string name = {});
  Result<io::Stream> dial(int rank, uint64_t number, TimePoint deadline) const { return dial_(rank, number, deadline); }

  // ---- who is in the job
  const WorkerInfo& self() const;
  std::vector<std::string> workers() const;  // that are no servers
  std::vector<std::string> servers() const;
  bool anyIsServer(const std::vector<std::string>& names) const;
  bool isConnected(const std::string& name) const;  // as far as this worker knows

  // This worker is a server: `serve` is called with each invitation, on a reading thread, and calls `ended` when it has
  // served. Before the first message.
  using Serve = std::function<void(Invitation invitation, std::function<void()> ended)>;
  void setServer(Serve serve) { serve_ = std::move(serve); }
  bool isServer() const { return serve_ != nullptr; }
  // The most services with servers of the job that are under way and of which a worker is the first one.
  static constexpr size_t kMostServices = 256;
  // Of this worker, before it begins another one with `servers`. ResourceExhausted.
  Status checkRoom(const std::vector<std::string>& servers) const;
  // The most from one worker that have not ended; a worker that sends more is disconnected. Services end here a little
  // later than on their first worker.
  static constexpr size_t kMostInvitations = 2 * kMostServices;
  // To those of the servers that wait for one.
  void invite(const Invitation& invitation) const;

  SummationCounters counters() const;

  // A connection that the worker with this rank dialed: whether it is awaited, and then that it is there.
  Status check(int rank, uint64_t number) const;
  Status attach(int rank, uint64_t number, io::Stream stream);

  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override;
  void onLost(int rank, const Status& why) override;

  // Every service fails here with `why`. Returns when none touches its memory.
  void close(const Status& why);

 private:
  // Where a participant reports its failure, and what its pump has for others. It may outlive all this.
  struct Outbox : std::enable_shared_from_this<Outbox> {
    explicit Outbox(cluster::Membership& ofWorker) : membership(ofWorker) {}
    void report(uint64_t number, const std::vector<WorkerInfo>& machines, const Status& why);
    // To all but this worker; nothing after the gate has closed. Who is lost hears nothing, and need not.
    // ResourceExhausted: the message is too large for the job.
    Status send(const std::vector<WorkerInfo>& machines, const std::vector<std::byte>& message);
    PumpOutbox forPump(uint64_t number, std::vector<WorkerInfo> machines, size_t workers);

    cluster::Membership& membership;
    base::Gate gate;
  };

  // A status that is not OK is for closing the connection.
  Status onServiceMessage(int rank, const FailureMessage& failure);
  Status onServiceMessage(int rank, const LossMessage& loss);
  Status onServiceMessage(int rank, MoveMessage move);
  Status onServiceMessage(int rank, Invitation invitation);
  std::vector<std::string> namesOf(bool servers) const;
  std::shared_ptr<Participant> find(uint64_t number) const;
  std::vector<std::shared_ptr<Participant>> all() const;

  const io::ContinueOn continueOn_;
  const Dial dial_;
  Serve serve_;  // empty on a worker that is no server
  const std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  const std::string recordFolder_;  // of the services' times; empty: nowhere
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Keeper> keeper_;
  mutable Mutex mutex_;
  Status closed_ TREADLE_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<Participant>> participants_ TREADLE_GUARDED_BY(mutex_);
  std::map<int, size_t> invitations_ TREADLE_GUARDED_BY(mutex_);  // that have not ended, by the sender's rank
};

}  // namespace treadle::summation
