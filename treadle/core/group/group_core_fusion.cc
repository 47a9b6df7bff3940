// The group's part in pushPull: makes what matches names, at the first use.

#include "treadle/core/group/fusion.h"
#include "treadle/core/group/group_core.h"

namespace treadle::group {

Future<void> GroupCore::offer(std::string name, Signature signature, void* data, OfferLimit limit) {
  const base::Gate::Use inside(gate_);
  if (!inside) return readyFuture(failure());
  std::shared_ptr<Fusion> names;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || link_.size() == 1) return readyFuture(failure_);
    names = fusion();
  }
  return names->offer(std::move(name), std::move(signature), data, limit);
}

// Named like a stream of two, it fails with the group.
std::shared_ptr<GroupCore> GroupCore::batches() {
  std::shared_ptr<GroupCore>& batches = streams_[{kAll, Stream::kFused}];
  if (!batches)
    batches = std::make_shared<GroupCore>(shared_, link_.of(Stream::kFused), options_,
                                          "the batches of pushPull in " + text_, surroundings_);
  return batches;
}

const std::shared_ptr<Fusion>& GroupCore::fusion() {
  if (!fusion_)
    fusion_ = std::make_shared<Fusion>(Fusion::Setup{
        .reactor = shared_.reactor,
        .pool = pool_,
        .link = link_.of(Stream::kFused),
        .group = text_,
        .sums = batches(),
        .memory = shared_.batchMemory,
        .stallReport = options_.stallReport,
        .abandon =
            [weak = weak_from_this()](const Status& why) {
              if (auto self = weak.lock()) self->abandon(why);
            },
    });
  return fusion_;
}

}  // namespace treadle::group
