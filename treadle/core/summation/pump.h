#pragma once
// Moves the bytes of a machine of a summation service: one thread with a reactor of its own, which reads, adds and
// writes and never waits for anything but its sockets. Each frame goes to the connection that SendOrder names, so that
// each machine gets its share of what is sent at every moment.
//
// A connection that breaks, or on which comes what no machine sends, ends the service here: all sums fail with the
// machine's name, those under way and later ones. That is the machine whose connection broke first here, which may have
// ended over another one. A machine that vanishes without a word is not noticed here: the room above calls `close`.
//
// A machine ends its pump only when all others have all their sums, which they may still get from it. Any thread may
// call `sum`.
//
// Budget of a piece: one system call to read it with the header of the next; to write it one, or where the link is
// slower, two and a wait; a checksum when it is written, and when it is read from TCP without TLS; the reactor's lock
// and that of TLS, which nobody else holds; no copy but the kernel's.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/future.h"
#include "treadle/core/io/reactor.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/requester.h"
#include "treadle/core/summation/send_order.h"

namespace treadle::summation {

class Pump {
 public:
  struct Peer {
    Machine machine = 0;
    std::string name;  // for messages
    io::Stream stream;
  };

  // Of a machine and all with which it exchanges bytes. `continueOn` runs what is made of its futures. Throws
  // ResourceError.
  Pump(Declaration declaration, Machine self, size_t servers, std::vector<Peer> peers, io::ContinueOn continueOn = {});
  ~Pump();

  // The data of a worker becomes the sum of the data of all workers; nobody else touches it until the future is ready.
  // To cancel the future has no effect: other workers count on the data. Throws ArgumentError for a tensor that was not
  // declared, or data of another size; StateError on a machine that is no worker, and where a sum of the tensor is
  // under way.
  Future<void> sum(size_t tensor, MutableBytes data);

  // All sums fail with `why`. Returns when nothing here touches their data any more. One thread at a time, and not from
  // what runs when a sum ends.
  void close(const Status& why);

 private:
  class Connection;
  struct Request {
    size_t tensor;
    MutableBytes data;
    Promise<void> promise;
  };
  struct UnderWay {
    Promise<void> promise;
    size_t parts = 0;  // that have not ended
  };

  void run();
  Status turn();
  void beginAll();
  void begin(Request request);
  Status checkSum(size_t tensor, MutableBytes data) const;
  void partDone(size_t part);
  void tensorPartDone(size_t tensor);
  void partsDone();
  Status write();
  void end();

  const Declaration declaration_;
  const Machine self_;
  const io::ContinueOn continueOn_;
  const std::unique_ptr<io::Reactor> reactor_;

  // Of the thread.
  Adder adder_;
  Requester requester_;
  SendOrder order_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::map<size_t, UnderWay> underWay_;  // by tensor
  std::vector<Request> begun_;           // are about to begin
  Status broken_;                        // of a connection

  Mutex mutex_;
  std::vector<Request> requests_ TREADLE_GUARDED_BY(mutex_);
  std::vector<bool> isTaken_ TREADLE_GUARDED_BY(mutex_);  // by tensor: a sum is under way
  Status failure_ TREADLE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace treadle::summation
