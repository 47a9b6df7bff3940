#include "treadle/core/group/group.h"

#include "treadle/core/base/error.h"
#include "treadle/core/group/group_service.h"

namespace treadle::group {

ProcessGroup ProcessGroup::make(Job& job, std::vector<std::string> members, GroupOptions options) {
  return ProcessGroup(valueOrThrow(job.groups().make(members, std::move(options))));
}

GroupCore& ProcessGroup::core() const {
  if (!core_) raise(failedPrecondition("this ProcessGroup means no group; make one with ProcessGroup::make"));
  return *core_;
}

int ProcessGroup::rank() const { return core().link().self(); }

int ProcessGroup::size() const { return core().link().size(); }

const GroupOptions& ProcessGroup::options() const { return core().options(); }

std::vector<std::string> ProcessGroup::members() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < size(); ++rank) names.push_back(core().link().member(rank).name);
  return names;
}

Future<void> allReduce(const ProcessGroup& group, void* data, size_t count, DataType type, ReduceOp op) {
  Description description;
  description.operation = OperationKind::kAllReduce;
  description.dataType = type;
  description.reduceOp = op;
  description.count = count;
  return group.core().start(description, {static_cast<std::byte*>(data), count * sizeOf(type)});
}

Future<void> broadcast(const ProcessGroup& group, MutableBytes bytes, int root) {
  if (root < 0 || root >= group.size())
    raise(invalidArgument("there is no rank " + std::to_string(root) + " to broadcast from in " + group.core().text() +
                          ", which has " + std::to_string(group.size()) + " members"));
  Description description;
  description.operation = OperationKind::kBroadcast;
  description.root = static_cast<uint32_t>(root);
  description.count = bytes.size();
  return group.core().start(description, bytes);
}

Future<void> barrier(const ProcessGroup& group) { return group.core().start({}, {}); }

}  // namespace treadle::group
