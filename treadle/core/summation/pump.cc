#include "treadle/core/summation/pump.h"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "treadle/core/base/check.h"
#include "treadle/core/io/late_sending.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/summation/frame_stream.h"

namespace treadle::summation {
namespace {

// Of a connection. Small, or a connection would take far more than its share before it can be written to no longer;
// larger than what is under way on links of up to some Gbit/s.
constexpr int kUnsentBytes = 16 << 10, kBufferBytes = 128 << 10;
constexpr size_t kWrittenPerTurn = size_t{256} << 10;

// What the machine sends to each other one, of all bytes; by machine.
std::vector<double> sharesOfConnections(const Declaration& declaration, Machine self, size_t machines) {
  std::vector<double> bytes(machines);
  for (const Part& part : declaration.parts) {
    // A sum to each other worker; an addend to the machine that sums.
    for (Machine worker = 0; part.machine == self && worker < declaration.workers; ++worker)
      bytes[worker] += static_cast<double>(part.bytes());
    if (self < declaration.workers) bytes[part.machine] += static_cast<double>(part.bytes());
  }
  bytes[self] = 0;
  double all = 0;
  for (const double one : bytes) all += one;
  for (double& one : bytes) one = all > 0 ? one / all : 0;
  return bytes;
}

}  // namespace

class Pump::Connection final : public io::EventHandler, public FrameReceiver {
 public:
  Connection(Pump& pump, Peer peer)
      : pump_(pump), machine_(peer.machine), name_(std::move(peer.name)), stream_(std::move(peer.stream)) {}

  Machine machine() const { return machine_; }
  int fd() const { return stream_.fd(); }

  void onEvents(uint32_t events) override {
    if ((events & EPOLLOUT) != 0) setWritable(true);
    if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
    if (Status status = reader_.readFrom(stream_, *this); !status.ok() && pump_.broken_.ok())
      pump_.broken_ = nameIn(std::move(status));
  }

  // Writes the next frame as far as the socket takes it; yields the bytes.
  Result<size_t> write() {
    if (writer_.isIdle() && hasNext()) writer_.begin(take());
    Result<size_t> bytes = writer_.writeTo(stream_);
    if (!bytes.ok()) return nameIn(std::move(bytes).status());
    pump_.order_.sent(machine_, *bytes);
    // TLS takes bytes before the socket does, and loses them with it.
    const std::optional<Outgoing> written = stream_.flushed() ? writer_.takeWritten() : std::nullopt;
    if (written) {
      isOfAdder_ ? pump_.adder_.written(machine_, *written) : pump_.requester_.written(*written);
    } else if (*bytes == 0) {
      setWritable(false);
    }
    return bytes;
  }

  bool hasBytes() const { return !writer_.isIdle() || hasNext(); }

 private:
  bool hasNext() const { return nextOfAdder() || nextOfRequester(); }
  std::optional<size_t> nextOfAdder() const {
    return machine_ < pump_.declaration_.workers ? pump_.adder_.next(machine_) : std::nullopt;
  }
  std::optional<size_t> nextOfRequester() const { return pump_.requester_.next(machine_); }

  // Of the first tensor; of the same one the sum, which is nearer to its end.
  Outgoing take() {
    const std::optional<size_t> sum = nextOfAdder(), addend = nextOfRequester();
    isOfAdder_ = sum && (!addend || *sum <= *addend);
    return (isOfAdder_ ? pump_.adder_.take(machine_) : pump_.requester_.take(machine_)).value();
  }
  Status nameIn(Status status) const { return std::move(status).withContext(name_).withWorker(name_); }

  void setWritable(bool isWritable) {
    pump_.order_.setWritable(machine_, isWritable);
    pump_.reactor_->change(fd(), isWritable ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }

  Result<MutableBytes> roomFor(const Frame& frame) override {
    if (frame.kind == FrameKind::kAddend) return pump_.adder_.roomFor(machine_, frame);
    if (frame.kind == FrameKind::kSum) return pump_.requester_.roomFor(machine_, frame);
    return MutableBytes();
  }

  Status arrived(const Frame& frame) override {
    switch (frame.kind) {
      case FrameKind::kAnnounce: return pump_.adder_.announced(machine_, frame);
      case FrameKind::kGrant: return pump_.requester_.granted(machine_, frame);
      case FrameKind::kAddend: pump_.adder_.arrived(machine_, frame); return {};
      case FrameKind::kSum: break;
    }
    if (const std::optional<size_t> part = pump_.requester_.arrived(frame)) pump_.partDone(*part);
    return {};
  }

  Pump& pump_;
  const Machine machine_;
  const std::string name_;
  io::Stream stream_;
  FrameReader reader_;
  FrameWriter writer_;
  bool isOfAdder_ = false;  // what the writer writes
};

Pump::Pump(Declaration declaration, Machine self, size_t servers, std::vector<Peer> peers, io::ContinueOn continueOn)
    : declaration_(std::move(declaration)),
      self_(self),
      continueOn_(std::move(continueOn)),
      reactor_(valueOrThrow(io::Reactor::make())),
      adder_(declaration_, self),
      requester_(declaration_, declaration_.workers + servers),
      order_(sharesOfConnections(declaration_, self, declaration_.workers + servers)),
      isTaken_(declaration_.tensors.size()) {
  TREADLE_CHECK(peers.size() + 1 == declaration_.workers + servers, "a pump has a peer for each other machine");
  for (Peer& peer : peers) {
    TREADLE_CHECK(peer.machine < declaration_.workers + servers && peer.machine != self, "a peer that is no machine");
    io::sendLate(peer.stream.fd(), kUnsentBytes, kBufferBytes);
    connections_.push_back(std::make_shared<Connection>(*this, std::move(peer)));
    order_.setWritable(connections_.back()->machine(), true);
    throwIfError(reactor_->add(connections_.back()->fd(), EPOLLIN, connections_.back()));
  }
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    raise(resourceExhausted(std::string("the summation service has no thread: ") + error.what()));
  }
}

Pump::~Pump() { close(cancelled("the summation service has ended")); }

Status Pump::checkSum(size_t tensor, MutableBytes data) const {
  if (self_ >= declaration_.workers) return failedPrecondition("a machine that is no worker has no data to sum");
  const size_t declared = declaration_.tensors.size();
  if (tensor >= declared)
    return invalidArgument("there is no tensor " + std::to_string(tensor) + "; " + std::to_string(declared) +
                           " were declared");
  const uint64_t bytes = declaration_.tensors[tensor].bytes;
  if (data.size() == bytes) return {};
  return invalidArgument("tensor " + std::to_string(tensor) + " was declared with " + std::to_string(bytes) +
                         " bytes, and its data has " + std::to_string(data.size()));
}

Future<void> Pump::sum(size_t tensor, MutableBytes data) {
  throwIfError(checkSum(tensor, data));
  Promise<void> promise(continueOn_);
  Future<void> future = promise.future();
  sharedStateOf(future)->endsByItself = true;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) {
      promise.fail(failure_);
      return future;
    }
    if (isTaken_[tensor])
      raise(
          failedPrecondition("a sum of tensor " + std::to_string(tensor) + " is under way; wait for its future first"));
    requests_.push_back({tensor, data, std::move(promise)});
    isTaken_[tensor] = true;
  }
  reactor_->wake();
  return future;
}

void Pump::close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
  }
  reactor_->wake();
  if (thread_.joinable()) thread_.join();
}

void Pump::run() {
  const io::Serving reads;
  Status failure;
  while (failure.ok()) {
    try {
      failure = turn();
    } catch (const std::bad_alloc&) {
      failure = resourceExhausted("there is no memory for the parts that this machine sums");
    }
  }
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = failure;
  }
  end();
}

// Until something happens. A failure ends the service.
Status Pump::turn() {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    begun_.swap(requests_);
  }
  beginAll();
  TREADLE_RETURN_IF_ERROR(write());
  partsDone();
  reactor_->poll();
  partsDone();
  return broken_;
}

void Pump::beginAll() {
  while (!begun_.empty()) {
    Request request = std::move(begun_.back());
    begun_.pop_back();
    begin(std::move(request));
  }
}

void Pump::begin(Request request) {
  const auto [first, end] = declaration_.partsOf(request.tensor);
  underWay_.emplace(request.tensor, UnderWay{std::move(request.promise), end - first + 1});
  for (size_t part = first; part < end; ++part) {
    const Part& where = declaration_.parts[part];
    const MutableBytes data = request.data.subspan(where.begin, where.bytes());
    where.machine == self_ ? adder_.announceOwn(part, data) : requester_.announce(part, data);
  }
  tensorPartDone(request.tensor);  // it may have no bytes, and no parts
}

void Pump::partsDone() {
  for (const size_t part : adder_.takeDone()) partDone(part);
}

void Pump::partDone(size_t part) { tensorPartDone(declaration_.parts[part].tensor); }

void Pump::tensorPartDone(size_t tensor) {
  const auto found = underWay_.find(tensor);
  if (--found->second.parts > 0) return;
  Promise<void> promise = std::move(found->second.promise);
  underWay_.erase(found);
  {
    MutexLock lock(mutex_);
    isTaken_[tensor] = false;
  }
  promise.set();
}

// So much that others get their turn; then `poll` does not wait.
Status Pump::write() {
  const auto next = [&] {
    for (const auto& one : connections_) order_.setPending(one->machine(), one->hasBytes());
    return order_.next();
  };
  for (size_t written = 0; const std::optional<size_t> machine = next();) {
    const auto isIt = [&](const auto& one) { return one->machine() == *machine; };
    Result<size_t> bytes = (*std::find_if(connections_.begin(), connections_.end(), isIt))->write();
    if (!bytes.ok()) return std::move(bytes).status();
    written += *bytes;
    if (written > kWrittenPerTurn) return reactor_->wake(), Status();
  }
  return {};
}

// Nothing is read or written any more.
void Pump::end() {
  for (const auto& one : connections_) reactor_->remove(one->fd());
  connections_.clear();
  Status failure;
  std::vector<Request> requests;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    requests.swap(requests_);
  }
  for (auto& [tensor, underWay] : underWay_) underWay.promise.fail(failure);
  underWay_.clear();
  for (std::vector<Request>* some : {&begun_, &requests}) {
    for (Request& request : *some) request.promise.fail(failure);
    some->clear();
  }
}

}  // namespace treadle::summation
