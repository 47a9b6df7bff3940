// A whole member of a job but for its joining: coordinator, engine, references and groups over a real membership and
// its threads, and two peers of which one says anything about calls, references, groups and the cluster, while this
// member calls it, keeps references to its values and reduces with it. When the peers are gone, nothing waits any more.

#include <array>
#include <set>

#include "tests/fuzz/fuzzer.h"
#include "tests/fuzz/silent_member.h"
#include "treadle/core/cluster/coordinator.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/group/sparse.h"
#include "treadle/core/rpc/engine.h"
#include "treadle/core/rpc/rref.h"
#include "treadle/core/rpc/typed_call.h"
#include "treadle/core/wire/writer.h"

namespace treadle::fuzz::member_fuzz {
namespace {

using namespace std::chrono_literals;

constexpr int kWorld = 3, kStranger = 1;
constexpr Duration kHangs = 60s;
constexpr size_t kMostSteps = 100;
const group::Surroundings kSurroundings = group::Surroundings::onOneHost(2);  // of the member's group

int64_t sum(const std::vector<int64_t>& numbers) {
  uint64_t all = 0;
  for (int64_t number : numbers) all += static_cast<uint64_t>(number);
  return static_cast<int64_t>(all);
}
std::string twice(const std::string& text) { return text + text; }
int64_t through(const RRef<int64_t>& number) { return number.isOwner() ? 1 : 0; }
RRef<int64_t> back(const RRef<int64_t>& number) { return number; }

Functions functions() {
  Functions known;
  known.add<&sum>("sum").add<&twice>("twice").add<&through>("through").add<&back>("back");
  return known;
}

// The last handler that hears of a loss: tells when it has been told of all.
class LastHandler final : public cluster::MessageHandler {
 public:
  explicit LastHandler(group::GroupService& groups) : groups_(groups) {}
  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override {
    groups_.onMessage(rank, from, std::move(message));
  }
  void onLost(int rank, const Status& why) override {
    groups_.onLost(rank, why);
    MutexLock lock(mutex_);
    promise(lost_.insert(rank).second, "a peer is lost once");
    changed_.notifyAll();
  }
  void awaitLosses() {
    TimePoint deadline = deadlineAfter(kHangs);
    MutexLock lock(mutex_);
    while (lost_.size() < kWorld - 1)
      promise(changed_.waitUntil(lock, deadline), "a peer whose sockets close is lost at once");
  }

 private:
  group::GroupService& groups_;
  Mutex mutex_;
  CondVar changed_;
  std::set<int> lost_ TREADLE_GUARDED_BY(mutex_);
};

class Member final : public group::Job {
 public:
  Member()
      : membership_(*reactor_, {"w0", 0}, kWorld, {.heartbeatTimeout = 60s, .connection = connectionOptions()}),
        coordinator_(membership_, *reactor_, [] { return cluster::WorkCount(); }),
        groups_(membership_, *reactor_, executor_),
        last_(groups_),
        engine_(std::make_unique<rpc::Engine>(
            membership_, *reactor_, executor_, functions(), nullptr,
            rpc::EngineOptions{.rpcTimeout = 60s, .maxInFlightBytes = 1 << 20, .maxQueuedBytes = 1 << 20}, nullptr)) {
    membership_.setHandler(link::Subject::kCluster, coordinator_);
    membership_.setHandler(link::Subject::kRpc, *engine_);
    membership_.setHandler(link::Subject::kGroup, last_);
    for (int rank = 0; rank < kWorld; ++rank) {
      auto [calls, called] = socketPair();
      auto [serving, served] = socketPair();
      attach(rank, std::move(rank == 0 ? called : serving), link::Connection::Kind::kServing);
      attach(rank, std::move(calls), link::Connection::Kind::kCalls);
      if (rank != 0) called_[static_cast<size_t>(rank)] = std::move(called);
      if (rank != 0) served_[static_cast<size_t>(rank)] = std::move(served);
    }
  }
  ~Member() override {
    membership_.finish();
    membership_.close("", Clock::now());
    Status why = cancelled("the end");
    coordinator_.close(why);
    groups_.close(why);
    engine_->close(why);
    executor_.stop();
  }

  group::GroupService& groups() override { return groups_; }
  rpc::Engine& engine() { return *engine_; }
  cluster::Coordinator& coordinator() { return coordinator_; }

  // What the stranger asks comes on the socket that serves it, what it answers on the one that it is called by.
  void write(Bytes bytes, bool answer) {
    int fd = (answer ? called_ : served_)[kStranger].fd();
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // The payloads that came to the stranger since the last time.
  Inputs heard() {
    Inputs payloads;
    UniqueFunction<void(link::Frame)> onFrame = [&](link::Frame frame) {
      if (frame.header.kind == wire::FrameKind::kMessage) payloads.push_back(std::move(frame.payload));
    };
    for (Result<bool> more = true; more.ok() && *more;) more = reader_.readFrom(called_[kStranger], onFrame);
    return payloads;
  }
  void loseAll() {
    called_ = {};
    served_ = {};
    last_.awaitLosses();
  }

 private:
  static link::ConnectionOptions connectionOptions() {
    link::ConnectionOptions options;
    options.limits = {.payloadBytes = 1 << 16, .bufferBytes = 1 << 20, .buffers = 16};
    return options;
  }
  void attach(int rank, io::Fd fd, link::Connection::Kind kind) {
    throwIfError(membership_.attach({"w" + std::to_string(rank), rank}, std::move(fd), kind));
  }

  std::unique_ptr<io::Reactor> reactor_ = valueOrThrow(io::Reactor::make());
  cluster::Membership membership_;
  io::Executor executor_{*reactor_, {.maxConcurrentHandlers = 2}};
  cluster::Coordinator coordinator_;
  group::GroupService groups_;
  LastHandler last_;
  std::unique_ptr<rpc::Engine> engine_;
  std::array<io::Stream, kWorld> called_, served_;
  link::FrameReader reader_{{}, nullptr, true};
};

class Play {
 public:
  explicit Play(Bytes input) : choices_(input) {}

  void run() {
    group_ = ProcessGroup::make(member_, {"w0", "w1"}, {.smallBytes = 64, .chunkBytes = 64});
    for (size_t i = 0; i < kMostSteps && choices_.any(); ++i) act();
    member_.loseAll();
    for (Future<void>& future : futures_) await(future);
    for (Future<int64_t>& future : calls_) await(future);
    held_.clear();
    // What had been left to the pool still begins, and fails at once.
    const TimePoint deadline = deadlineAfter(kHangs);
    while (member_.engine().counts().pending > 0) {
      promise(Clock::now() < deadline, "no call waits for a lost peer");
      std::this_thread::yield();
    }
    promise(member_.coordinator().barrier(deadlineAfter(kHangs)).code() == Code::kPeerLost, "no barrier does either");
  }

 private:
  template <class T>
  void await(Future<T>& future) {
    try {
      future.wait(kHangs);
    } catch (const TimeoutError&) {
      promise(false, "what needs a lost peer ends");
    } catch (const Error&) {}
  }

  void act() {
    switch (choices_.below(12)) {
      case 0: return call();
      case 1: return remote();
      case 2: return reduce();
      case 3: return held_.empty() ? void() : held_.pop_back();
      case 4: return say(link::Subject::kCluster, choices_.bytes(choices_.below(40)));
      case 5:
        return say(link::Subject{static_cast<uint8_t>(1 + choices_.below(3))}, choices_.bytes(choices_.below(64)));
      case 6: return answer();
      case 7: return notice();
      case 8: return cancel();
      case 9: return sayToGroup();
      default: return request();
    }
  }
  void say(link::Subject subject, Bytes payload, bool answer = false, Bytes data = {}) {
    std::vector<wire::BufferEntry> entries;
    if (!data.empty()) entries.push_back({data.size(), wire::Place::kInline, 0});
    member_.write(joined({wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(subject), payload, entries),
                          {data.begin(), data.end()}}),
                  answer);
  }
  void say(const rpc::MessageHeader& header, Bytes values = {}, bool answer = false) {
    wire::Writer payload;
    rpc::encodeHeader(payload, header);
    payload.raw(values);
    say(link::Subject::kRpc, payload.bytes(), answer);
  }

  rpc::GlobalId id() { return {static_cast<int32_t>(choices_.below(kWorld)), choices_.below(16)}; }
  rpc::ForkEntry entry() { return {id(), static_cast<int32_t>(choices_.below(kWorld)), id()}; }

  void call() {
    try {
      calls_.push_back(rpc::startCall<int64_t>(
          member_.engine(), rpc::callWith<&sum>(member_.engine(), kStranger, {}, std::vector<int64_t>{1, 2})));
    } catch (const PeerLostError&) {}
  }
  void remote() {
    held_.push_back(member_.engine().sendForReference(
        rpc::callWith<&sum>(member_.engine(), kStranger, {}, std::vector<int64_t>{3})));
  }
  void reduce() {
    numbers_.emplace_back(choices_.below(2) == 0 ? 4 : 100, 1.0F);
    const std::span<float> data(numbers_.back());
    switch (choices_.below(7)) {
      case 2: return futures_.push_back(send(group_, data, kStranger));
      case 3: return futures_.push_back(recv(group_, data, kStranger));
      case 4: return futures_.push_back(reduceRows(std::as_bytes(data)));
      case 5: return futures_.push_back(allToAll(group_, std::as_bytes(data), memoryLike(data)));
      case 6: return futures_.push_back(exchangeBlocks(data));
      default: return futures_.push_back(allReduce(group_, data));
    }
  }
  std::span<std::byte> memoryLike(std::span<const float> data) {
    return std::as_writable_bytes(std::span(numbers_.emplace_back(data.size())));
  }
  // Between the member and the stranger goes a block of less than a chunk each way.
  Future<void> exchangeBlocks(std::span<const float> data) {
    const std::vector<uint64_t> sizes = {data.size_bytes() - kBlockOfStranger, kBlockOfStranger};
    return allToAll(group_, std::as_bytes(data), memoryLike(data), sizes, sizes);
  }
  // The shape has as many elements as `describeRows` says.
  Future<void> reduceRows(Bytes values) {
    std::vector<uint64_t> indices;
    for (size_t i = 0; i < values.size() / 16; ++i) indices.push_back(7 * i % 100);
    return group::sparseAllReduce(group_, kRows, indices, values, group::DataType::kFloat32, sums_.emplace_back());
  }
  void request() {
    static const Functions known = functions();
    const Functions::Entry& function = *known.find(std::array{"sum", "twice", "through", "back"}[choices_.below(4)]);
    rpc::MessageHeader header;
    header.type = choices_.below(4) == 3 ? rpc::MessageType::kFetch : rpc::MessageType::kRequest;
    header.id = choices_.below(16);
    header.timeLeftUs = choices_.below(2) == 0 ? 60'000'000 : choices_.number<uint64_t>();
    header.function = header.type == rpc::MessageType::kFetch ? rpc::kFetchValue : function.name;
    header.signature = function.hash();
    if (choices_.below(3) == 2 || header.type == rpc::MessageType::kFetch) header.target = id();
    if (choices_.below(3) == 2) header.result = entry();
    if (choices_.below(3) == 2) header.forks = {entry(), entry()};
    if (choices_.below(4) == 3 && header.type == rpc::MessageType::kRequest)
      header.inputs = {{0, id(), static_cast<int32_t>(choices_.below(kWorld))}};
    say(header, choices_.bytes(choices_.below(40)));
  }
  void answer() {
    rpc::MessageHeader header;
    header.type = rpc::MessageType::kAnswer;
    header.id = choices_.below(8);
    if (choices_.below(4) == 3) header.status = notFound("it is not there");
    if (choices_.below(4) == 3) header.forks = {entry()};
    say(header, choices_.bytes(choices_.below(12)), true);
  }
  void notice() {
    rpc::MessageHeader header;
    header.type = rpc::MessageType::kNotice;
    header.notice = rpc::RefNotice{static_cast<uint8_t>(1 + choices_.below(5))};
    header.fork = entry();
    say(header);
  }
  void cancel() {
    rpc::MessageHeader header;
    header.type = rpc::MessageType::kCancel;
    header.id = choices_.below(16);
    say(header);
  }
  // As a send or recv of the member describes itself.
  static void describeSend(group::Message& message) {
    message.description.operation = group::OperationKind::kSend;
    message.description.dataType = group::DataType::kUint8;
    message.description.count *= sizeof(float);
    message.description.root = 0;
    message.description.algorithm = *group::choose({}, message.description, kSurroundings);
    message.elements = message.stream == group::Stream::kSends ? message.description.count : 0;
  }
  // As the all-to-all that the member has begun last describes itself.
  void describeBlocks(group::Message& message) const {
    if (heard_.operation != message.description.operation) return;
    message.description = heard_;
    message.elements = heard_.sizesVary() ? 0 - heardSum_ : 0;  // so that all sizes agree
  }
  // As a sparse all-reduce of the member describes itself.
  static void describeRows(group::Message& message) {
    message.description.operation = group::OperationKind::kSparseAllReduce;
    message.description.count = 400;
    message.description.shape = kRows.text();
    message.description.root = 0;
    message.description.algorithm = group::Algorithm::kDirect;
  }
  // Words and rows of the right size, in which a choice says which rows they are.
  std::vector<std::byte> rows(uint64_t count) {
    const group::RowLayout layout{50, count, 16};
    std::vector<std::byte> data(layout.sizeBytes());
    for (uint64_t i = 0; i < layout.words(); ++i) data[8 * i] = static_cast<std::byte>(i + choices_.below(3));
    return data;
  }
  // The group's number is in what has come to the stranger, and how the member describes what it begins.
  void sayToGroup() {
    for (const auto& payload : member_.heard()) {
      Result<group::Message> message = group::parse({link::Subject::kGroup, payload, {}});
      if (!message.ok()) continue;
      groupId_ = message->group;
      if (message->kind != group::MessageKind::kStart) continue;
      heard_ = message->description;
      heardSum_ = message->elements;
    }
    group::Message message;
    message.group = groupId_;
    message.sequence = choices_.below(8) == 7 ? group::kWholeGroup : choices_.below(4);
    message.kind = group::MessageKind{std::array<uint8_t, 8>{1, 2, 3, 4, 5, 6, 7, 10}[choices_.below(8)]};
    message.description = {group::OperationKind{static_cast<uint8_t>(1 + choices_.below(12))},
                           group::DataType::kFloat32,
                           group::ReduceOp::kSum,
                           static_cast<uint32_t>(choices_.below(3)),
                           choices_.below(2) == 0 ? 4U : 100U,
                           0,
                           64,
                           64};
    message.description.algorithm = *group::choose({}, message.description, kSurroundings);
    message.position = choices_.below(16);
    message.status = cancelled("no more");
    std::vector<std::byte> data(choices_.below(4) * 16 + choices_.below(2));
    message.stream = group::Stream{std::array<uint8_t, 4>{0, 0, 1, 2}[choices_.below(4)]};
    if (message.stream != group::Stream::kAll && choices_.below(2) == 0) describeSend(message);
    const bool isAllToAll = message.description.operation == group::OperationKind::kAllToAll ||
                            message.description.operation == group::OperationKind::kAllToAllV;
    if (isAllToAll && choices_.below(2) == 0) {
      describeBlocks(message);
      data.resize(std::array<size_t, 4>{0, 8, kBlockOfStranger, 64}[choices_.below(4)]);  // 8: half of a small one
    }
    if (message.stream == group::Stream::kAll && choices_.below(3) == 2) {
      message.elements = choices_.below(60);
      describeRows(message);
      if (choices_.below(4) != 3) data = rows(message.elements);
    }
    say(link::Subject::kGroup, group::encode(message), false, data);
  }

  Choices choices_;
  static inline const group::SparseShape kRows{{100, 4}, 1};
  static constexpr uint64_t kBlockOfStranger = 16;  // bytes, less than a chunk
  std::deque<std::vector<float>> numbers_;
  std::deque<group::RowSums> sums_;
  Member member_;
  ProcessGroup group_;
  uint64_t groupId_ = 0;
  group::Description heard_;
  uint64_t heardSum_ = 0;
  std::vector<Future<void>> futures_;
  std::vector<Future<int64_t>> calls_;
  std::vector<rpc::HandlePtr> held_;
};

void feed(Bytes input) { Play(input).run(); }

Inputs seeds() {
  return {row({0, 6, 1, 0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0}),                  // a call and its answer
          row({1, 7, 1, 1, 5, 0, 1, 6, 3}),                                 // a reference, a notice
          row({11, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0}),                 // a request
          row({11, 1, 0, 2, 0, 0, 2, 1, 4, 0, 1, 5, 0, 0, 4, 0, 0, 0, 0}),  // one that keeps its result
          row({11, 2, 0, 3, 0, 0, 0, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 3, 0, 4}),
          row({2, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 0, 0}),  // a reduction and its partner
          row({2, 1, 0, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 1, 0, 0, 1, 0, 3, 0, 0}),
          row({2, 0, 3, 9, 0, 0, 9, 0, 0, 0, 1, 0, 2, 0}),              // a recv and its send
          row({2, 0, 4, 9, 0,  0, 0, 10, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0,  // a sparse reduction and its partner
               9, 0, 0, 6, 10, 0, 0, 0,  0, 0, 0, 2, 1, 0, 0}),
          row({2, 0, 5, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0}),  // an all-to-all and its partner
          row({2, 1, 6, 9, 0,  0, 0, 11, 0, 1, 0, 0, 0, 0, 0, 0, 0,  // one of other sizes
               9, 0, 0, 1, 11, 0, 1, 0,  0, 0, 0, 0, 2, 0}),
          row({8, 1}),
          row({4, 26, 1, 0})};
}

const Fuzzer kMember("member", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::member_fuzz
