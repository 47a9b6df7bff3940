#pragma once
// A summation service: some workers of a job have tensors of the same sizes, and each becomes the sum of those of all.
// Other members of the job, the servers, have no data; they only sum, so that the network of the workers moves less
// than an all-reduce would (docs/rooms/summation.md says how much less).
//
// A service may be asynchronous (SummationOptions::asynchronous): then the servers keep running sums, such as the
// latest parameters of a model, and each worker gives its changes and gets the latest values when it likes. The first
// sum of a tensor on the first worker gives the values that all begin with, and no other worker's sum ends before; so
// others give zeros first. Each worker then keeps a copy of its last values.
//
// SummationService is a handle; copies mean the same service. It may outlive its job; all sums fail then. When the last
// copy is destroyed before `ended` is ready, the service fails on all machines. Any thread may call any function.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/io/future.h"
#include "treadle/core/summation/compression.h"
#include "treadle/core/summation/job.h"
#include "treadle/core/summation/times.h"

namespace treadle::summation {

struct Invitation;

// Of a worker that is in a team, under way at a time. Half of what pushPull (collective/collectives.h) takes.
inline constexpr size_t kMostSumsInTeam = 8192;

struct SummationOptions {
  // Names of workers of the job, which all machines list alike: those with tensors, and those that only sum. Both
  // empty: all workers of the job, in an open one those that are in it now, and its servers (Worker::peers,
  // Worker::servers), also lost ones, with which no service can be made. Only `workers` empty: all workers.
  std::vector<std::string> workers = {}, servers = {};
  std::string name = {};  // for messages; another name means another service. At most 64 bytes
  // To make it; of a sum, until all workers that it waits for have begun it. kNoTimeout: until a worker is lost. With
  // teams it holds for the team first, until its sum of the data begins, and for the sum among teams, 5 s longer, then.
  Duration timeout = std::chrono::seconds(60);
  // Each worker has answers for itself, whatever the others do: `sum` gives a change of a tensor, and yields the sum of
  // all that has come for it. Servers then sum all; without servers the workers do, each a share.
  bool asynchronous = false;
  // Then: how many sums of a tensor a worker may be ahead of any other one that has not left; its sum waits for that
  // one. None: it waits for nobody.
  std::optional<uint64_t> staleness = {};
  // In which form the data of float32 tensors travels, and the sums back; others travel as they are. All workers give
  // the same. What packing loses of a worker's data is added to its next data for the tensor, and with kOneBit and
  // kTopK what it loses of a sum to the next sum of the part (error feedback), so that over time all of the data
  // arrives; sums of 16-bit floats are rounded. Numbers that are not finite make sums that are not, as numbers and sums
  // that are too large for kFloat16 do. Until the service ends that takes memory: on a worker a float32 for each number
  // and what travels; with kOneBit and kTopK a float32 for each number on who sums it. Such a sum on a server ends when
  // it is known that all workers have it, one round trip later. Not in an asynchronous service.
  Compression compression = {};
  // What each machine can send, and receive at the same time, in any unit: workers and servers in the order above. The
  // shares follow from the first worker's list, and of a team from its first worker. Empty: all alike.
  std::vector<double> bandwidths = {};
  // Workers that sum among themselves first. The first one of each team, in the order above, then exchanges the team's
  // sum with the other teams and the servers, so the network of a host, or of a rack, moves it once. A worker in no
  // team is alone. All workers give the same, or `make` fails with TimeoutError, and only another `name` makes a
  // service again. Not in an asynchronous service, whose workers wait for nobody. Empty: see teamsByHost.
  std::vector<std::vector<std::string>> teams = {};
  // If `teams` is empty: the workers of each host are a team, where they are on several hosts. Workers whose first TCP
  // address beyond the loopback is the same are on one host. So containers with addresses of their own are hosts, and
  // workers behind one proxy are on one host: give `teams`, or false.
  bool teamsByHost = true;

  Status validate() const;
};

struct SummationTensor {
  std::string name;
  group::DataType type = group::DataType::kFloat32;
  uint64_t elements = 0;
  std::optional<Compression> compression = {};  // of a float32 tensor, in place of SummationOptions::compression
};

class SummationService {
 public:
  // On all workers of the service, and on those of its servers that are no servers of the job (Worker::servers), which
  // take part by themselves; the n-th such call on each means the same service. Workers give the same tensors, the most
  // urgent ones first; servers give none. Returns when all machines are connected. Where one machine cannot take part,
  // that fails all others that list it. ArgumentError: options out of range; a name twice; this worker has no part in
  // it; a server of the job among the workers; tensors that differ, named. NotFoundError: an unknown name.
  // ResourceError: no memory for it, or the first worker is that of 256 others under way that have servers of the job.
  // TimeoutError, PeerLostError: who has not come. StateError on a server of the job.
  static SummationService make(Job& job, SummationOptions options, std::vector<SummationTensor> tensors = {});

  SummationService() = default;  // means no service; every function except `valid` throws StateError

  bool valid() const { return handle_ != nullptr; }
  bool isServer() const;
  // Whether this is the first worker, with whose values all begin where the service is asynchronous.
  bool isFirst() const;

  // The data of the tensor becomes the sum of the data of all workers: the n-th sum of a tensor on one meets the n-th
  // on all others. Sums of several tensors may be called in any order and be under way together; those of tensors that
  // were declared first go first, but within a team. Data is added in the order of the workers; each team adds its own
  // first, and then these sums are added in the order of the teams' first workers. 16-bit floats are added as float32
  // and rounded once, and by a team once more.
  // The data belongs to the service until the future is ready; to cancel the future has no effect, as the other workers
  // count on the data. NotFoundError: no such tensor. ArgumentError: another type or size, or not aligned. StateError:
  // a sum of the tensor is under way, this machine is a server, or after `leave`. ResourceError: 8,192 sums of a worker
  // in a team are under way. The future fails with TimeoutError naming the workers that have not begun the sum, or the
  // first workers of their teams, with PeerLostError naming a lost worker, and then all later ones
  // do; the data is undefined. A lost server delays it: the sum begins again with the machines that are left, and has
  // the same bits. Sums with kOneBit and kTopK then lack what that server had kept of earlier ones, so they have other
  // bits than without the loss, and all workers the same. In an asynchronous service the data becomes the sum of all
  // that has come for the tensor by then, this data included, in the order in which it came; parts of at most 4 MiB of
  // a tensor, whole, have their own orders. 16-bit floats are rounded at each addition, so small changes get lost.
  // Where a server is lost, others go on from the latest values that some worker has, each change is added once, and
  // changes that no worker has seen may come in another order.
  Future<void> sum(std::string_view tensor, MutableBytes data, group::DataType type);

  template <group::Reducible T>
  Future<void> sum(std::string_view tensor, std::span<T> data) {
    return sum(tensor, std::as_writable_bytes(data), group::DataTypeOf<T>::kValue);
  }

  // This worker makes no more sums; those under way end. Ready as `ended`.
  Future<void> leave();
  // All sums fail with `why` on all machines, unless the service has ended. Returns at once. ArgumentError: it is OK.
  void fail(const Status& why);
  // Ready when all workers have left: no machine needs this one any more. Fails as the service does. Servers wait for
  // it.
  Future<void> ended() const;
  // What this machine's part has spent its time with until about now, but for the time within a team; nothing on other
  // workers of a team than its first. If the environment has TREADLE_RECORD, each machine writes it to a file in that
  // folder when the service ends or fails, for `treadle plan --explain`.
  SummationTimes times() const;

 private:
  struct Handle;
  friend void serve(Job& job, const Invitation& invitation);
  static SummationService serve(Job& job, const SummationOptions& options);
  explicit SummationService(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  Handle& handle() const;

  std::shared_ptr<Handle> handle_;
};

}  // namespace treadle::summation

namespace treadle {

using summation::SummationOptions;
using summation::SummationService;
using summation::SummationTensor;

}  // namespace treadle
