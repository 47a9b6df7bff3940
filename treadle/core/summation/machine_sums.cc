#include "treadle/core/summation/machine_sums.h"

#include <algorithm>

namespace treadle::summation {

MachineSums::MachineSums(Declaration declaration, Machine self, size_t machines, uint64_t grantBytes)
    : declaration_(std::move(declaration)),
      self_(self),
      isLost_(machines),
      adder_(Adder::make(declaration_, self, grantBytes)),
      requester_(declaration_, self, machines),
      compressed_(declaration_.tensors.size()) {
  for (size_t tensor = 0; isWorker(self) && tensor < compressed_.size(); ++tensor)
    if (const Packing& packing = declaration_.tensors[tensor].packing; packing.isPacked())
      compressed_[tensor] = std::make_unique<CompressedTensor>(packing);
}

void MachineSums::announce(size_t tensor, MutableBytes data) {
  const MutableBytes travels = compressed_[tensor] ? compressed_[tensor]->pack(data) : data;
  const auto [first, end] = declaration_.partsOf(tensor);
  for (size_t part = first; part < end; ++part) {
    const Part& where = declaration_.parts[part];
    requester_.announce(part, travels.subspan(where.begin, where.bytes()));
  }
  exchangeHere().ignore();
}

void MachineSums::finish(size_t tensor) {
  if (compressed_[tensor]) compressed_[tensor]->unpack();
}

// What adder and requester have for each other. DataLoss only when a part has moved to here, or somebody has said what
// it has of one.
Status MachineSums::exchangeHere() {
  if (!isWorker(self_)) return {};
  for (bool isMore = true; isMore;) {
    isMore = false;
    for (const Requester::Own& one : requester_.takeOwn()) {
      if (one.version == nullptr) {
        adder_->announceOwn(one.part, one.data);
      } else {
        TREADLE_RETURN_IF_ERROR(adder_->hadOwn(one.part, one.round, *one.version));
      }
      isMore = true;
    }
    for (const auto& [part, round] : adder_->takeReleasedOwn()) {
      TREADLE_RETURN_IF_ERROR(requester_.releasedOwn(part, round));
      isMore = true;
    }
    for (const size_t part : adder_->takeDone()) {
      requester_.summedOwn(part);
      isMore = true;
    }
  }
  return {};
}

std::vector<Machine> MachineSums::placesWithout(Machine server, const Bandwidths& bandwidths) const {
  std::vector<bool> isLost = isLost_;
  isLost[server] = true;
  return placeAnew(declaration_.parts, server,
                   serviceSharesWithout(bandwidths, declaration_.mode.isAsynchronous, isLost), isLost);
}

Status MachineSums::move(Machine lost, const std::vector<Machine>& machines) {
  if (lost >= isLost_.size() || isWorker(lost) || isLost_[lost])
    return invalidArgument("parts of a machine move that is no server, or was lost before");
  std::vector<size_t> parts;
  for (size_t part = 0; part < declaration_.parts.size(); ++part)
    if (declaration_.parts[part].machine == lost) parts.push_back(part);
  const auto isLeft = [&](Machine one) { return one < isLost_.size() && one != lost && !isLost_[one]; };
  if (machines.size() != parts.size() || !std::all_of(machines.begin(), machines.end(), isLeft))
    return invalidArgument("the parts of a lost server move to other machines than there are");
  isLost_[lost] = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    declaration_.parts[parts[i]].machine = machines[i];
    if (isWorker(self_)) requester_.moved(parts[i], lost);
    if (machines[i] == self_) TREADLE_RETURN_IF_ERROR(adder_->adopt(parts[i]));
  }
  return exchangeHere();
}

void MachineSums::left(Machine worker) {
  adder_->left(worker);
  exchangeHere().ignore();
}

Result<MutableBytes> MachineSums::roomFor(Machine from, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kAddend: return adder_->roomFor(from, frame);
    case FrameKind::kSum: return requester_.roomFor(from, frame);
    case FrameKind::kVersion: return isWorker(from) ? adder_->roomFor(from, frame) : requester_.roomFor(from, frame);
    default: return MutableBytes();
  }
}

Status MachineSums::arrived(Machine from, const Frame& frame) {
  Status status;
  switch (frame.kind) {
    case FrameKind::kAnnounce: status = adder_->announced(from, frame); break;
    case FrameKind::kHave: status = adder_->had(from, frame); break;
    case FrameKind::kAddend: adder_->arrived(from, frame); break;
    case FrameKind::kGrant: status = requester_.granted(from, frame); break;
    case FrameKind::kRelease: status = requester_.released(from, frame); break;
    case FrameKind::kSum: status = requester_.arrived(frame); break;
    case FrameKind::kVersion: status = isWorker(from) ? adder_->had(from, frame) : requester_.arrived(frame); break;
    case FrameKind::kLeave: return neverSent("a frame that is about no sum");
  }
  const Status here = exchangeHere();
  return status.ok() ? here : status;
}

std::optional<Outgoing> MachineSums::take(Machine to) {
  const std::optional<size_t> sum = nextOfAdder(to), addend = requester_.next(to);
  return sum && (!addend || *sum <= *addend) ? adder_->take(to) : requester_.take(to);
}

void MachineSums::written(Machine to, const Outgoing& frame) {
  requester_.written(frame);
  adder_->written(to, frame);
  exchangeHere().ignore();
}

}  // namespace treadle::summation
