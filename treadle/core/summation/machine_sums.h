#pragma once
// The sums of one machine of a summation service: those that it makes (Adder), and on a worker those of its data, which
// other machines make (Requester). Pure logic over memory, without sockets; one thread at a time.
//
// After std::bad_alloc, which any function may throw, it is of no use any more.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/adder.h"
#include "treadle/core/summation/compressed_tensor.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/outgoing.h"
#include "treadle/core/summation/requester.h"

namespace treadle::summation {

class MachineSums {
 public:
  MachineSums(Declaration declaration, Machine self, size_t machines, uint64_t grantBytes = Adder::kGrantBytes);
  MachineSums(const MachineSums&) = delete;
  MachineSums& operator=(const MachineSums&) = delete;

  // With the machines that sum the parts now.
  const Declaration& declaration() const { return declaration_; }
  bool isWorker(Machine machine) const { return machine < declaration_.workers; }
  const Adder& adder() const { return *adder_; }

  // This worker's data of the tensor is there, which the sum replaces. Until `finish` nobody else touches it.
  void announce(size_t tensor, MutableBytes data);
  // All parts of the tensor are done: its data becomes the sum, if it has not yet.
  void finish(size_t tensor);
  bool isDone(size_t part) const { return requester_.isDone(part); }
  // This worker has its sum, whether or not others do.
  bool isHere(size_t part) const { return requester_.isHere(part); }
  // Whether data could move, with other machines or of them.
  bool dataMayMove() const { return requester_.dataMayMove() || adder_->dataMayMove(); }
  // The parts for which isDone has become true since the last call.
  std::vector<size_t> takeDone() { return requester_.takeDone(); }

  // On which machines the parts of the server, in their order, would best be summed without it. `bandwidths`: of all
  // machines, lost ones too.
  std::vector<Machine> placesWithout(Machine server, const Bandwidths& bandwidths) const;
  // The server is lost; its parts, in their order, are summed by these machines from now on. No frame of it comes any
  // more. InvalidArgument: it is no server, or these are not as many as its parts, or no machines that are left;
  // nothing has changed then. DataLoss: another machine has sent before what none does.
  Status move(Machine lost, const std::vector<Machine>& machines);
  bool isLost(Machine machine) const { return isLost_[machine]; }

  // The worker, which may be this one, makes no more sums.
  void left(Machine worker);

  // ---- with other machines. DataLoss: what no machine sends
  // Where the piece of the frame goes; none: it has no piece.
  Result<MutableBytes> roomFor(Machine from, const Frame& frame);
  // All of the frame is there.
  Status arrived(Machine from, const Frame& frame);

  // The next frame for a machine, if there is one; its piece stays where it is until `written`. Of the most urgent
  // tensor; of the same one the sum, which is nearer to its end.
  bool hasBytes(Machine to) const { return nextOfAdder(to) || requester_.next(to); }
  std::optional<Outgoing> take(Machine to);
  void written(Machine to, const Outgoing& frame);

 private:
  std::optional<size_t> nextOfAdder(Machine to) const { return isWorker(to) ? adder_->next(to) : std::nullopt; }
  Status exchangeHere();

  Declaration declaration_;
  const Machine self_;
  std::vector<bool> isLost_;
  const std::unique_ptr<Adder> adder_;
  Requester requester_;
  std::vector<std::unique_ptr<CompressedTensor>> compressed_;  // of a worker, by tensor; null: it travels as it is
};

}  // namespace treadle::summation
