#include "treadle/train/ddp/summation_hook.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/summation/job.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/operations.h"
#include "treadle/train/ddp/summation_tensors.h"

namespace treadle::ddp {
namespace {

// The most urgent one first: that of the last layer, which has its gradient first, or of the first layer, which the
// next forward pass needs first.
std::vector<SummationTensor> tensorsOf(const ParameterList& list, const DdpOptions& options) {
  std::vector<SummationTensor> tensors = summationTensorsOf(list);
  if (!options.overlapForward) std::ranges::reverse(tensors);
  return tensors;
}

// Of the ranks, and then of the servers.
std::vector<double> bandwidthsOf(const ProcessGroup& group, const std::vector<std::string>& servers,
                                 const DdpOptions& options) {
  if (options.bandwidths.empty()) return {};
  std::vector<double> bandwidths;
  for (const std::vector<std::string>& names : {group.members(), servers}) {
    for (const std::string& name : names) {
      const auto given = options.bandwidths.find(name);
      bandwidths.push_back(given == options.bandwidths.end() ? 1 : given->second);
    }
  }
  return bandwidths;
}

// The gradient lives until the sum has ended.
Future<void> begin(SummationService service, const std::string& name, const at::Tensor& gradient) {
  Future<void> sum = service.sum(name, collective::memoryOf(gradient), collective::dataTypeOf(gradient.scalar_type()));
  sharedStateOf(sum)->onReady([gradient] {});
  return sum;
}

// Calls `f` with the failure of the future, if it fails. Returns the number of the continuation.
template <class F>
uint64_t onFailure(const Future<void>& future, F f) {
  return sharedStateOf(future)->onReady([state = std::weak_ptr(sharedStateOf(future)), f = std::move(f)]() mutable {
    const auto ended = state.lock();
    if (ended && !ended->result().ok()) f(ended->result().status());
  });
}

}  // namespace

// Each group has a service of its own, whatever became of those of other groups on some of the ranks.
SummationService makeGradientService(const ProcessGroup& group, const ParameterList& list,
                                     const std::vector<std::string>& servers, const DdpOptions& options) {
  return SummationService::make(summation::jobOf(group),
                                {.workers = group.members(),
                                 .servers = servers,
                                 .name = "gradients of group " + std::to_string(group.core().link().group()),
                                 .timeout = group.timeout(),
                                 .compression = options.compression,
                                 .bandwidths = bandwidthsOf(group, servers, options)},
                                tensorsOf(list, options));
}

SummationHook::SummationHook(const ProcessGroup& group, const ParameterList& list, SummationService service,
                             std::vector<std::string> servers, const Compression& compression)
    : group_(group),
      servers_(std::move(servers)),
      names_(list.trainedNames()),
      compression_(compression),
      service_(std::move(service)),
      sums_(names_.size()) {
  onServiceEnded_ = onFailure(service_.ended(), [group](const Status& why) {
    abandonGroup(group, "has no summation service any more (" + why.message() + ")", why);
  });
  onGroupEnded_ =
      onFailure(group_.core().ended(), [service = service_](const Status& why) mutable { service.fail(why); });
}

// The service lives until all ranks have left it: without this one the last sums of the others would fail.
SummationHook::~SummationHook() {
  const Future<void> serviceEnded = service_.ended(), groupEnded = group_.core().ended();
  sharedStateOf(groupEnded)->forget(onGroupEnded_);
  sharedStateOf(serviceEnded)->forget(onServiceEnded_);
  try {
    std::erase_if(sums_, [](const Future<void>& sum) { return !sum.valid(); });
    const Future<void> all = whenAll(std::move(sums_));  // one may wait for that of a failed pass before it begins
    sharedStateOf(all)->onReady([service = service_]() mutable { service.leave(); });
    sharedStateOf(serviceEnded)->onReady([service = service_] {});
  } catch (const std::bad_alloc&) {  // then they fail
  }
}

std::string SummationHook::description() const {
  constexpr size_t kNamed = 8;
  std::string text = "SummationHook without servers";
  if (!servers_.empty())
    text = "SummationHook with " + listed(servers_, kNamed, [](const std::string& server) { return server; });
  if (compression_.form != Compression::Form::kNone) text += std::string(", as ") + nameOf(compression_.form);
  return text;
}

// Nothing is left to do when the sums have come.
Reduction SummationHook::reduce(Exchange& exchange, const Bucket& bucket) {
  at::Tensor flat = bucket.flat;
  flat.div_(exchange.group().size());
  for (size_t position = 0; position < bucket.parameters.size(); ++position)
    exchange.add(sum(bucket.parameters[position], bucket.views[position]));
  co_return;
}

// The last one may be of a pass that has failed, and still be under way.
Future<void> SummationHook::sum(size_t parameter, const at::Tensor& gradient) {
  Future<void>& last = sums_[parameter];
  if (!last.valid() || last.ready()) return last = begin(service_, names_[parameter], gradient);
  auto promise = std::make_shared<Promise<void>>();
  const Future<void> next = promise->future();
  sharedStateOf(last)->onReady([promise, service = service_, name = names_[parameter], gradient] {
    try {
      const Future<void> sum = begin(service, name, gradient);
      sharedStateOf(sum)->onReady([promise, ended = sharedStateOf(sum)] {
        ended->result().ok() ? promise->set() : promise->fail(ended->result().status());
      });
    } catch (...) {
      promise->fail(statusOfCurrentException("a sum of gradients"));
    }
  });
  return last = next;
}

}  // namespace treadle::ddp
