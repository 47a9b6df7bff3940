#pragma once
// Moves the bytes of a machine of a summation service: one thread with a reactor of its own, which reads, adds and
// writes and never waits for anything but its sockets. Each frame goes to the connection that SendOrder names, so that
// each machine gets its share of what is sent at every moment.
//
// A service ends when all its workers have left. It fails on this machine when a worker is lost, when a machine sends
// what none does, when a sum is not done in time, and when `fail` says so: all sums fail then, those under way and
// later ones. Whoever owns the pump passes the failure on to the other machines.
//
// A server may be lost. Its connection ends here, and the first worker says which machines sum its parts from then on:
// these begin sums under way again, or go on from the last answer that a worker has. A machine that the first worker
// has not told yet waits.
//
// Any thread may call anything but `close`.
//
// Budget of a piece: one system call to read it with the header of the next; to write it one, or where the link is
// slower, two and a wait; a checksum when it is written, and when it is read from TCP without TLS; the reactor's lock
// and that of TLS, which nobody else holds; no copy but the kernel's, and one by a worker of
// what a server sends. Of a turn: up to three readings of the clock.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/future.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/summation/bandwidths.h"
#include "treadle/core/summation/overdue.h"
#include "treadle/core/summation/pump_state.h"
#include "treadle/core/summation/times.h"
#include "treadle/core/summation/traffic.h"

namespace treadle::summation {

class PumpConnection;

struct PumpPeer {
  Machine machine = 0;
  io::Stream stream;
};

// What a pump has for other machines, but by their job. Called on the pump's thread; they do not wait, and fail where
// others cannot hear of it.
struct PumpOutbox {
  // To the first worker: this machine has lost the server.
  std::function<Status(Machine server, const Status& why)> sendLoss = [](Machine, const Status&) { return Status(); };
  // By the first worker: the server is lost, and these machines sum its parts, in their order. To all others.
  std::function<Status(Machine server, const std::vector<Machine>& machines, const Status& why)> sendMove =
      [](Machine, const std::vector<Machine>&, const Status&) { return Status(); };
};

struct PumpOptions {
  // Of a sum, until all workers that it waits for have begun it. A sum that does not end, while nothing comes from
  // other machines or goes to them, has a little longer, so that the machine that knows who has not begun it reports
  // first.
  Duration timeout = std::chrono::seconds(60);
  // How long the end of a connection waits for a cause, by `fail` or `lost`; and `lost` for the end of a connection.
  Duration patience{};
  // On the first worker: of all machines, from which the shares of those that are left follow. None: all alike.
  Bandwidths bandwidths = {};
  PumpOutbox outbox = {};
  io::ContinueOn continueOn = {};                                  // runs what is made of the pump's futures
  std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();  // counts what this pump does, too
  SummationTimes times = {};      // which service and machine it is, as Pump::times says
  std::string recordFolder = {};  // its times are written there at its end; empty: nowhere
};

class Pump {
 public:
  // `names`: of all machines, the workers first. `peers`: those that this machine exchanges bytes with, which are all
  // workers and, for a worker, all servers. Throws ResourceError.
  Pump(Declaration declaration, Machine self, std::vector<std::string> names, std::vector<PumpPeer> peers,
       PumpOptions options = {});
  ~Pump();

  // The data of a worker becomes the sum of the data of all workers; nobody else touches it until the future is ready.
  // To cancel the future has no effect: other workers count on the data. Throws ArgumentError for a tensor that was not
  // declared, or data of another size or that is not aligned for its type; StateError on a machine that is no worker,
  // where a sum of the tensor is under way, and after `leave`.
  Future<void> sum(size_t tensor, MutableBytes data);

  // This worker makes no more sums. Those under way end first; then it reports to the other machines that it leaves.
  void leave();
  // Ready when all workers have left, so that no machine needs this one any more. Fails as the service does.
  Future<void> ended() const { return whenEnded_; }

  // All sums fail with `why`, unless the service has ended or failed before. Returns at once.
  void fail(const Status& why);
  // The job has lost the machine. Returns at once.
  void lost(Machine machine, const Status& why);
  // On the first worker: another machine has lost the server, whatever the job reports. Returns at once.
  void lostElsewhere(Machine server, const Status& why);
  // The first worker has said that the server is lost: MachineSums::move. Returns at once.
  void move(Machine server, std::vector<Machine> machines);
  // Of this machine, until about now.
  SummationTimes times() const;
  // This machine goes on without the server.
  bool isWithout(Machine server) const;
  // As `fail`; returns when nothing here touches their data any more. One thread at a time, and not from what runs when
  // a sum ends.
  void close(const Status& why);

 private:
  // Ends a future also where there is no memory left.
  class Outcome {
   public:
    explicit Outcome(const io::ContinueOn& continueOn);

    Future<void> future() const { return promise_.future(); }
    void end(const Status& how);

   private:
    Promise<void> promise_;
    Status failure_;  // that there is no memory: made while there is some
  };
  struct Request {
    size_t tensor;
    MutableBytes data;
    Outcome outcome;
  };
  struct UnderWay {
    Outcome outcome;
    size_t parts = 0;  // that have not ended
    TimePoint begun{};
  };

  Status checkSum(size_t tensor, MutableBytes data) const;

  void run();
  Status turn();
  bool isOver() const;
  void beginAll();
  void begin();
  void leaveIfDone();
  void write();
  PumpConnection* connectionTo(Machine machine) const;  // null: there is none
  bool partsDone();
  void partDone(size_t tensor);
  Status checkCounts() const;
  std::string namesOf(const std::vector<Machine>& machines) const;
  void countSums();
  bool isBusy() const;
  void become(Activity::Kind kind) { state_.activity.become(kind, Clock::now()); }
  void publishTimes() TREADLE_REQUIRES(mutex_);
  void watch();
  Status lossOrFailure();
  Status hearNews();
  Status lose(Machine server, const Status& why);
  void drop(Machine server);
  void look();
  Status overdueHere();
  Status overdueElsewhere();
  void end(Status failure);
  void recordTimes() const;

  const PumpOptions options_;

  // Of the thread.
  PumpState state_;
  std::vector<std::shared_ptr<PumpConnection>> connections_;
  std::map<size_t, UnderWay> underWay_;    // by tensor
  std::vector<Request> begun_;             // are about to begin
  uint64_t sums_ = 0;                      // that have begun
  uint64_t countedSums_ = 0;               // of state_.adder, in the traffic
  uint64_t sumsDone_ = 0, bytesDone_ = 0;  // of tensors
  TimePoint wakesAt_{};                    // for a loss that counts then
  bool mayLeave_ = false, hasLeft_ = false, watches_ = false;
  Overdue overdue_;
  uint64_t framesAtLook_ = 0;  // state_.frames at the last look
  TimePoint lastFrame_{};      // a look after the last one
  Outcome ended_;
  const Future<void> whenEnded_;
  Status noMemory_, allHaveLeft_;  // made while there is memory

  mutable Mutex mutex_;
  std::vector<Request> requests_ TREADLE_GUARDED_BY(mutex_);
  std::vector<bool> isTaken_ TREADLE_GUARDED_BY(mutex_);  // by tensor: a sum is under way
  std::vector<std::pair<Machine, Status>> lost_ TREADLE_GUARDED_BY(mutex_), lostElsewhere_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::pair<Machine, std::vector<Machine>>> moves_ TREADLE_GUARDED_BY(mutex_);
  std::vector<bool> isWithout_ TREADLE_GUARDED_BY(mutex_);  // by machine
  SummationTimes times_ TREADLE_GUARDED_BY(mutex_);
  bool leaves_ TREADLE_GUARDED_BY(mutex_) = false;
  Status failure_ TREADLE_GUARDED_BY(mutex_);  // set for good when the thread ends
  std::thread thread_;
};

}  // namespace treadle::summation
