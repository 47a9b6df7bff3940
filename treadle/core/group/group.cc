#include "treadle/core/group/group.h"

#include <numeric>

#include "treadle/core/base/error.h"
#include "treadle/core/group/batch_cutter.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/group/offered_tensor.h"

namespace treadle::group {

ProcessGroup::ProcessGroup(Job& job, std::shared_ptr<GroupCore> core)
    : core_(std::move(core)), job_(&job), timeout_(core_->options().timeout), algorithm_(core_->options().algorithm) {}

ProcessGroup ProcessGroup::make(Job& job, std::vector<std::string> members, GroupOptions options) {
  throwIfError(job.groups().checkNoServers(members));
  return makeWithServers(job, std::move(members), std::move(options));
}

ProcessGroup ProcessGroup::makeWithServers(Job& job, std::vector<std::string> members, GroupOptions options) {
  return ProcessGroup(job, valueOrThrow(job.groups().make(members, std::move(options))));
}

ProcessGroup ProcessGroup::withTimeout(Duration timeout) const {
  core();
  throwIfError(checkTimeout(timeout));
  ProcessGroup group = *this;
  group.timeout_ = timeout;
  return group;
}

ProcessGroup ProcessGroup::withShape(std::string shape) const {
  core();
  if (shape.size() > kMostShapeBytes)
    raise(invalidArgument("a shape's text has " + std::to_string(shape.size()) + " bytes, and may have " +
                          std::to_string(kMostShapeBytes)));
  ProcessGroup group = *this;
  group.shape_ = std::move(shape);
  return group;
}

ProcessGroup ProcessGroup::withUrgency(uint32_t urgency) const {
  core();
  ProcessGroup group = *this;
  group.urgency_ = urgency;
  return group;
}

ProcessGroup ProcessGroup::withAlgorithm(Algorithm algorithm) const {
  core();
  ProcessGroup group = *this;
  group.algorithm_ = algorithm;
  return group;
}

Result<Algorithm> ProcessGroup::algorithmFor(const Description& what) const { return core().choose(algorithm_, what); }

Future<void> ProcessGroup::start(Call call) const {
  call.description.urgency = urgency_;
  call.wanted = algorithm_;
  const bool hasData = call.description.operation != OperationKind::kBarrier;
  if (hasData && call.description.shape.empty()) call.description.shape = shape_;
  return core().start(std::move(call), timeout_);
}

Future<void> ProcessGroup::startWith(int peer, Stream stream, Call call) const {
  call.description.shape = shape_;
  return core().startWith(peer, stream, std::move(call), timeout_);
}

Future<void> ProcessGroup::offer(std::string name, Signature signature, void* data, bool timeoutUntilMatched) const {
  return core().offer(std::move(name), std::move(signature), data, {timeout_, timeoutUntilMatched});
}

GroupCore& ProcessGroup::core() const {
  if (!core_) raise(failedPrecondition("this ProcessGroup means no group; make one with ProcessGroup::make"));
  return *core_;
}

Job& ProcessGroup::job() const {
  core();
  return *job_;
}

int ProcessGroup::rank() const { return core().link().self(); }

int ProcessGroup::size() const { return core().link().size(); }

const GroupOptions& ProcessGroup::options() const { return core().options(); }

Duration ProcessGroup::timeout() const {
  core();
  return timeout_;
}

Algorithm ProcessGroup::algorithm() const {
  core();
  return algorithm_;
}

std::vector<std::string> ProcessGroup::members() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < size(); ++rank) names.push_back(core().link().member(rank).name);
  return names;
}

namespace {

void checkRoot(const ProcessGroup& group, int root) {
  if (root < 0 || root >= group.size())
    raise(invalidArgument("there is no rank " + std::to_string(root) + " in " + group.core().text() + ", which has " +
                          std::to_string(group.size()) + " members"));
}

// More than any memory has counts as kMost, which no size in bytes wraps around.
uint64_t sumOf(const std::vector<uint64_t>& counts) {
  constexpr uint64_t kMost = UINT64_MAX / 16;
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0},
                         [](uint64_t sum, uint64_t count) { return count > kMost - sum ? kMost : sum + count; });
}

void checkSize(const ProcessGroup& group, const char* what, size_t size, uint64_t wanted) {
  if (size != wanted)
    raise(invalidArgument(std::string("the ") + what + " has " + std::to_string(size) + " bytes, and its blocks in " +
                          group.core().text() + " have " + std::to_string(wanted)));
}

// `sizes`, or as many times `each` as there are members.
std::vector<uint64_t> blocksOf(const ProcessGroup& group, std::vector<uint64_t> sizes, uint64_t each) {
  const auto members = static_cast<size_t>(group.size());
  if (sizes.empty()) return std::vector<uint64_t>(members, each);
  if (sizes.size() != members)
    raise(invalidArgument(std::to_string(sizes.size()) + " sizes of blocks were given, and " + group.core().text() +
                          " has " + std::to_string(members) + " members"));
  return sizes;
}

// A call whose blocks all members know.
Call callOf(OperationKind operation, Bytes input, MutableBytes output, std::vector<uint64_t> counts, int root = 0) {
  Call call{{}, input, output, std::move(counts)};
  call.description.operation = operation;
  call.description.root = static_cast<uint32_t>(root);
  call.description.count = sumOf(call.counts);
  call.description.blocks = hashOf(call.counts);
  return call;
}

Future<void> transfer(const ProcessGroup& group, int peer, Stream stream, Bytes input, MutableBytes output) {
  checkRoot(group, peer);
  if (peer == group.rank())
    raise(invalidArgument("rank " + std::to_string(peer) + " of " + group.core().text() +
                          " is this member, which cannot send to itself"));
  Call call{{OperationKind::kSend}, input, output};
  call.description.count = stream == Stream::kSends ? input.size() : output.size();
  return group.startWith(peer, stream, std::move(call));
}

// Batches have any size up to the largest, so the group's algorithm must do them all.
void checkFusable(const ProcessGroup& group, const Signature& signature) {
  if (group.size() == 1) return;
  for (const uint64_t sizeBytes : {uint64_t{0}, kBatchBytes}) {
    Description batch{OperationKind::kAllReduce, signature.dataType, signature.reduceOp};
    batch.count = sizeBytes / sizeOf(signature.dataType);
    batch.smallBytes = group.options().smallBytes;
    throwIfError(group.core().choose(group.options().algorithm, batch).status());
  }
}

}  // namespace

Future<void> allReduce(const ProcessGroup& group, void* data, size_t count, DataType type, ReduceOp op) {
  throwIfError(checkReduces(type, op));
  const MutableBytes bytes(static_cast<std::byte*>(data), count * sizeOf(type));
  return group.start({{OperationKind::kAllReduce, type, op, 0, count}, bytes, bytes});
}

Future<void> reduce(const ProcessGroup& group, Bytes input, MutableBytes output, DataType type, int root, ReduceOp op) {
  throwIfError(checkReduces(type, op));
  checkRoot(group, root);
  const size_t count = input.size() / sizeOf(type);
  if (input.size() != count * sizeOf(type))
    raise(invalidArgument("the input has " + std::to_string(input.size()) + " bytes, which are no whole number of " +
                          std::string(nameOf(type))));
  if (group.rank() != root) output = {};
  if (group.rank() == root) checkSize(group, "output", output.size(), count * sizeOf(type));
  return group.start({{OperationKind::kReduce, type, op, static_cast<uint32_t>(root), count}, input, output});
}

Future<void> reduceScatter(const ProcessGroup& group, Bytes input, MutableBytes output, DataType type, ReduceOp op,
                           std::vector<uint64_t> counts) {
  throwIfError(checkReduces(type, op));
  const size_t elementBytes = sizeOf(type);
  counts = blocksOf(group, std::move(counts), output.size() / elementBytes);
  checkSize(group, "input", input.size(), sumOf(counts) * elementBytes);
  checkSize(group, "output", output.size(), counts[static_cast<size_t>(group.rank())] * elementBytes);
  Call call = callOf(OperationKind::kReduceScatter, input, output, std::move(counts));
  call.description.dataType = type;
  call.description.reduceOp = op;
  return group.start(std::move(call));
}

Future<void> allGather(const ProcessGroup& group, Bytes input, MutableBytes output, std::vector<uint64_t> sizes) {
  sizes = blocksOf(group, std::move(sizes), input.size());
  checkSize(group, "input", input.size(), sizes[static_cast<size_t>(group.rank())]);
  checkSize(group, "output", output.size(), sumOf(sizes));
  return group.start(callOf(OperationKind::kAllGather, input, output, std::move(sizes)));
}

Future<void> gather(const ProcessGroup& group, Bytes input, MutableBytes output, int root,
                    std::vector<uint64_t> sizes) {
  checkRoot(group, root);
  sizes = blocksOf(group, std::move(sizes), input.size());
  checkSize(group, "input", input.size(), sizes[static_cast<size_t>(group.rank())]);
  checkSize(group, "output", output.size(), group.rank() == root ? sumOf(sizes) : 0);
  return group.start(callOf(OperationKind::kGather, input, output, std::move(sizes), root));
}

Future<void> scatter(const ProcessGroup& group, Bytes input, MutableBytes output, int root,
                     std::vector<uint64_t> sizes) {
  checkRoot(group, root);
  sizes = blocksOf(group, std::move(sizes), output.size());
  checkSize(group, "input", input.size(), group.rank() == root ? sumOf(sizes) : 0);
  checkSize(group, "output", output.size(), sizes[static_cast<size_t>(group.rank())]);
  return group.start(callOf(OperationKind::kScatter, input, output, std::move(sizes), root));
}

// Where sizes are given only the two members concerned know that of a block, so the description has none.
Future<void> allToAll(const ProcessGroup& group, Bytes input, MutableBytes output, std::vector<uint64_t> sent,
                      std::vector<uint64_t> received) {
  const auto members = static_cast<size_t>(group.size());
  const bool sizesVary = !sent.empty() || !received.empty();
  sent = blocksOf(group, std::move(sent), input.size() / members);
  received = blocksOf(group, std::move(received), output.size() / members);
  checkSize(group, "input", input.size(), sumOf(sent));
  checkSize(group, "output", output.size(), sumOf(received));
  const auto self = static_cast<size_t>(group.rank());
  if (sent[self] != received[self])
    raise(invalidArgument("this member sends itself " + std::to_string(sent[self]) + " bytes in " +
                          group.core().text() + " and expects " + std::to_string(received[self])));
  if (sizesVary) return group.start({{OperationKind::kAllToAllV}, input, output, std::move(sent), std::move(received)});
  return group.start(callOf(OperationKind::kAllToAll, input, output, std::move(sent)));
}

Future<void> broadcast(const ProcessGroup& group, MutableBytes bytes, int root) {
  checkRoot(group, root);
  return group.start(
      {{OperationKind::kBroadcast, DataType::kUint8, ReduceOp::kSum, static_cast<uint32_t>(root), bytes.size()},
       bytes,
       bytes});
}

Future<void> barrier(const ProcessGroup& group) { return group.start({}); }

Future<void> send(const ProcessGroup& group, Bytes bytes, int to) {
  return transfer(group, to, Stream::kSends, bytes, {});
}

Future<void> recv(const ProcessGroup& group, MutableBytes bytes, int from) {
  return transfer(group, from, Stream::kReceives, {}, bytes);
}

Future<void> pushPull(const ProcessGroup& group, std::string_view name, void* data, size_t count, DataType type,
                      PushPullOptions options) {
  if (options.shape.empty()) options.shape = {count};
  Signature signature{type, options.op, std::move(options.shape)};
  throwIfError(checkTensorName(name));
  throwIfError(check(signature));
  if (signature.elements() != count)
    raise(invalidArgument("pushPull of '" + std::string(name) + "': " + std::to_string(count) +
                          " elements were given for the shape of " + describe(signature)));
  checkFusable(group, signature);
  return group.offer(std::string(name), std::move(signature), data, options.timeoutUntilMatched);
}

}  // namespace treadle::group
