#include "treadle/core/group/group_service.h"

#include <algorithm>

#include "treadle/core/base/hash.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/base/log.h"
#include "treadle/core/group/batch_memory.h"
#include "treadle/core/wire/writer.h"

namespace treadle::group {
namespace {

constexpr size_t kGroupNameBytes = 127;
constexpr size_t kLeastChunkBytes = 64;
constexpr size_t kMostChunkBytes = size_t{16} << 20;
constexpr size_t kMostMembersListed = 4;  // messages have room for more than the members' names

uint64_t hashOf(Bytes bytes) {
  return base::mixed(base::fnv1a({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

std::string textOf(const GroupOptions& options, const std::vector<std::string>& members) {
  if (!options.name.empty()) return "group '" + options.name + "'";
  return "the group of " + listed(members, kMostMembersListed, [](const std::string& name) { return name; });
}

}  // namespace

Status checkTimeout(Duration timeout) {
  return timeout > Duration::zero() ? Status() : invalidArgument("a group's timeout must be positive");
}

Status GroupOptions::validate() const {
  if (name.size() > kGroupNameBytes)
    return invalidArgument("a group's name has at most " + std::to_string(kGroupNameBytes) + " characters; this has " +
                           std::to_string(name.size()));
  TREADLE_RETURN_IF_ERROR(checkTimeout(timeout));
  if (stallReport <= Duration::zero()) return invalidArgument("a group's stallReport must be positive");
  if (smallBytes > kMostSmallBytes)
    return invalidArgument("a group's smallBytes is at most " + std::to_string(kMostSmallBytes));
  if (algorithm != Algorithm::kAutomatic && !isAlgorithm(static_cast<uint8_t>(algorithm)))
    return invalidArgument("a group's algorithm has an unknown number");
  if (chunkBytes < kLeastChunkBytes || chunkBytes > kMostChunkBytes)
    return invalidArgument("a group's chunkBytes is between " + std::to_string(kLeastChunkBytes) + " and " +
                           std::to_string(kMostChunkBytes));
  return {};
}

GroupService::GroupService(cluster::Membership& membership, io::Reactor& reactor, io::Executor& executor)
    : membership_(membership), shared_{reactor, executor, std::make_shared<BatchMemory>()} {}

GroupService::~GroupService() { close(cancelled("this worker has left the job")); }

void GroupService::setCosts(const cluster::Costs& costs, HostOf hostOf) {
  MutexLock lock(mutex_);
  costs_ = costs;
  hostOf_ = std::move(hostOf);
}

cluster::Costs GroupService::costs() const {
  MutexLock lock(mutex_);
  return costs_;
}

Result<Placement> GroupService::placementOf(const std::vector<std::string>& members) const {
  const Result<std::vector<WorkerInfo>> infos = infosOf(members);
  if (!infos.ok()) return infos.status();
  MutexLock lock(mutex_);
  return placementLocked(*infos);
}

Placement GroupService::placementLocked(const std::vector<WorkerInfo>& members) const {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const WorkerInfo& member : members)
    hosts.push_back(numbers.emplace(hostOf_(member.rank), static_cast<int>(numbers.size())).first->second);
  return Placement(std::move(hosts));
}

Result<std::vector<WorkerInfo>> GroupService::infosOf(const std::vector<std::string>& members) const {
  if (members.empty()) return invalidArgument("a group needs at least one member");
  std::vector<WorkerInfo> infos;
  for (const std::string& name : members) {
    if (name.empty()) return invalidArgument("a group's member has an empty name");
    if (std::count(members.begin(), members.end(), name) > 1)
      return invalidArgument("worker '" + name + "' is named twice as a member of one group");
    Result<int> rank = membership_.rankOf(name);
    if (!rank.ok()) return std::move(rank).status();
    infos.push_back({name, *rank});
  }
  return infos;
}

Status GroupService::checkNoServers(const std::vector<std::string>& members) const {
  for (const std::string& name : members) {
    const Result<int> rank = membership_.rankOf(name);
    if (rank.ok() && membership_.isServer(*rank))
      return invalidArgument("'" + name + "' has the rank of a summation server and takes part in no group; " +
                             "Worker::peers() has the workers that do");
  }
  return {};
}

Result<std::shared_ptr<GroupCore>> GroupService::make(const std::vector<std::string>& members, GroupOptions options) {
  TREADLE_RETURN_IF_ERROR(options.validate());
  Result<std::vector<WorkerInfo>> infos = infosOf(members);
  if (!infos.ok()) return std::move(infos).status();
  auto self = std::find(members.begin(), members.end(), membership_.self().name);
  if (self == members.end())
    return invalidArgument(link::describe(membership_.self()) +
                           " is not a member of the group that it makes; only members make a group");
  wire::Writer key;
  key.string(options.name);
  // A rank is one worker's for good; a name may go to another one in an open job.
  for (const WorkerInfo& info : *infos) {
    key.string(info.name);
    key.number(static_cast<int32_t>(info.rank));
  }
  std::shared_ptr<GroupCore> group;
  std::vector<Early> ofNames, others;
  Violations violations;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return closed_;
    key.number(made_[{reinterpret_cast<const char*>(key.bytes().data()), key.size()}]++);
    uint64_t id = hashOf(key.bytes());
    if (groups_.contains(id)) return internalError("two groups of this worker have one id; give one of them a name");
    Surroundings surroundings{placementLocked(*infos), costs_};
    MemberLink link(membership_, id, std::move(*infos), static_cast<int>(self - members.begin()));
    std::string text = textOf(options, members);
    group = std::make_shared<GroupCore>(shared_, std::move(link), std::move(options), std::move(text),
                                        std::move(surroundings));
    groups_[id] = group;
    for (Early& early : takeEarly(id)) (isOfNames(early.message.kind) ? ofNames : others).push_back(std::move(early));
    handOver(std::move(others), *group, violations);  // nothing newer can come before these
  }
  // Without the lock: what follows from these may need it. A member sends no newer ones before these are answered.
  handOver(std::move(ofNames), *group, violations);
  for (auto& [rank, why] : violations) membership_.lose(rank, why);
  // Who was lost before the group was known here was not told to it.
  for (int rank = 0; rank < group->link().size(); ++rank)
    if (Status connected = group->link().connected(rank); !connected.ok() && rank != group->link().self())
      group->onLost(group->link().member(rank).rank, connected);
  return group;
}

// In the order of arrival.
void GroupService::handOver(std::vector<Early> early, GroupCore& group, Violations& violations) {
  for (Early& one : early)
    if (Status taken = group.onMessage(one.rank, std::move(one.message)); !taken.ok())
      violations.emplace_back(one.rank, std::move(taken));
}

std::vector<GroupService::Early> GroupService::takeEarly(uint64_t id) {
  auto found = early_.find(id);
  if (found == early_.end()) return {};
  std::vector<Early> taken = std::move(found->second);
  early_.erase(found);
  for (const Early& early : taken) {
    Use& use = earlyUse_[early.rank];
    use.sizeBytes -= early.sizeBytes;
    --use.messages;
  }
  return taken;
}

void GroupService::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  Result<Message> parsed = parse(std::move(message));
  if (!parsed.ok()) return from->close(parsed.status());
  membership_.noteReported(rank, parsed->status);
  const uint64_t id = parsed->group;
  std::shared_ptr<GroupCore> group;
  bool kept = false;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    auto found = groups_.find(id);
    if (found != groups_.end()) {
      group = found->second;
    } else if (parsed->kind != MessageKind::kAsk) {
      kept = keep(rank, std::move(*parsed));
    }
  }
  if (!group && parsed->kind == MessageKind::kAsk) {
    Message answer = answerMessage(parsed->sequence, false);
    answer.stream = parsed->stream;  // of all members: others do not ask
    return send(rank, id, std::move(answer));
  }
  if (!group && !kept) return refuse(rank, id);
  if (!group) return;
  if (Status taken = group->onMessage(rank, std::move(*parsed)); !taken.ok()) from->close(taken);
}

bool GroupService::keep(int rank, Message message) {
  Use& use = earlyUse_[rank];
  const size_t textBytes = message.description.shape.size() + message.status.message().size();
  const size_t sizeBytes = sizeof(Early) + message.data.sizeBytes + message.body.size() + textBytes;
  if (use.messages >= kEarlyMessages || use.sizeBytes + sizeBytes > kEarlyBytes) {
    if (!std::exchange(use.exceeded, true))
      logWarn(membership_.self().name, "too much has come from rank " + std::to_string(rank) +
                                           " for groups that are not made here; some of them fail");
    return false;
  }
  use.sizeBytes += sizeBytes;
  ++use.messages;
  uint64_t id = message.group;
  early_[id].push_back({rank, std::move(message), sizeBytes});
  return true;
}

// Its group fails there, and it tells the others; this worker hears of it when it begins an operation of that group.
void GroupService::refuse(int rank, uint64_t group) {
  Message abort;
  abort.sequence = kWholeGroup;
  abort.kind = MessageKind::kAbort;
  abort.status = resourceExhausted(link::describe(membership_.self()) +
                                   " was sent too much for groups that it had not made; make them there first");
  send(rank, group, std::move(abort));
}

void GroupService::send(int rank, uint64_t group, Message message) {
  message.group = group;
  membership_.send(rank, link::Subject::kGroup, encode(message), {}, link::SendMode::kUrgent, kNever).ignore();
}

void GroupService::onLost(int rank, const Status& why) {
  for (const auto& group : groups()) group->onLost(rank, why);
  MutexLock lock(mutex_);
  for (auto& [id, messages] : early_) std::erase_if(messages, [&](const Early& early) { return early.rank == rank; });
  std::erase_if(early_, [](const auto& entry) { return entry.second.empty(); });
  earlyUse_.erase(rank);
}

void GroupService::close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    early_.clear();
  }
  for (const auto& group : groups()) group->close(why);
  MutexLock lock(mutex_);
  groups_.clear();
}

std::vector<std::shared_ptr<GroupCore>> GroupService::groups() const {
  std::vector<std::shared_ptr<GroupCore>> all;
  MutexLock lock(mutex_);
  for (const auto& [id, group] : groups_) all.push_back(group);
  return all;
}

}  // namespace treadle::group
