// Budget of a tensor in the steady state: two entries in maps on each member, three on rank 0, and its share of two
// messages to and from rank 0, which hold what has come since the last ones.

#include "treadle/core/group/fusion.h"

#include <algorithm>
#include <new>

#include "treadle/core/group/group_core.h"
#include "treadle/core/io/serving.h"

namespace treadle::group {
namespace {

// The most that one sender may have in the inbox: far more than members send before they are answered.
constexpr size_t kMostUnreadBytes = size_t{64} << 20, kUnreadMessageBytes = 128;
// Far more batches than rank 0 is ahead of a member by Note [What is under way].
constexpr size_t kMostRunning = 1024;

std::vector<std::string> namesOfMembers(const MemberLink& link) {
  std::vector<std::string> names;
  for (int rank = 0; rank < link.size(); ++rank) names.push_back(link.nameOf(rank));
  return names;
}

// The latest deadline of the tensors, so that none fails because of another one's. One that is due earlier ends by
// itself (Fusion::onLate).
Duration timeoutOf(const std::vector<BatchPart>& parts) {
  TimePoint due = TimePoint::min();
  for (const BatchPart& part : parts) due = std::max(due, part.tensor->due);
  return due == kNever ? kNoTimeout : std::max<Duration>(due - Clock::now(), kAnswerTime);
}

}  // namespace

Fusion::Fusion(Setup setup)
    : reactor_(setup.reactor),
      pool_(std::move(setup.pool)),
      link_(std::move(setup.link)),
      group_(std::move(setup.group)),
      sums_(std::move(setup.sums)),
      stallReport_(setup.stallReport),
      abandon_(std::move(setup.abandon)),
      memory_(std::move(setup.memory)),
      unread_(static_cast<size_t>(link_.size())) {
  if (link_.self() == 0) root_ = std::make_unique<FusionRoot>(namesOfMembers(link_), group_);
}

Future<void> Fusion::offer(std::string name, Signature signature, void* data, OfferLimit limit) {
  auto offered =
      std::make_shared<OfferedTensor>(std::move(name), std::move(signature), static_cast<std::byte*>(data), limit);
  offered->state->executor = pool_;
  offered->state->endsByItself = true;
  offered->state->cancelHook = [weak = weak_from_this(), weakOffered = std::weak_ptr(offered)] {
    auto self = weak.lock();
    auto cancelledOne = weakOffered.lock();
    if (self && cancelledOne) self->cancel(cancelledOne);
  };
  Task event = [this, offered] { onOffer(offered); };
  reserve(offered->name);
  Turn turn = Turn::kNone;
  try {
    turn = inbox_.push(std::move(event), false);
  } catch (const std::bad_alloc&) {
    release(&offered->name, 1);
    throw;
  }
  use(turn);
  return Future<void>(offered->state);
}

void Fusion::reserve(const std::string& name) {
  MutexLock lock(mutex_);
  if (open_ == kMostOpenOffers)
    raise(resourceExhausted(textOf(name, group_) + ": " + std::to_string(open_) +
                            " tensors are in flight, which is the most; wait for some of them first. One that has "
                            "failed counts until " +
                            link_.nameOf(0) + ", which matches the names, has answered"));
  if (!names_.insert(name).second)
    raise(failedPrecondition(textOf(name, group_) + ": a tensor of this name is in flight; wait for its future first"));
  ++open_;
}

void Fusion::release(const std::string* name, size_t open) {
  MutexLock lock(mutex_);
  if (name != nullptr) names_.erase(*name);
  open_ -= open;
}

Status Fusion::onMessage(int member, Message message) {
  const bool isOfMember = message.kind == MessageKind::kOffers && link_.self() == 0;
  const bool isOfRoot = message.kind == MessageKind::kOrders && member == 0;
  if (!isOfMember && !isOfRoot)
    return dataLoss("it sent a message about names that members exchange with rank 0: " + group_);
  {
    MutexLock lock(mutex_);
    size_t& unread = unread_[static_cast<size_t>(member)];
    unread += message.body.size() + kUnreadMessageBytes;
    if (unread > kMostUnreadBytes) return dataLoss("it sent more about names than members send at a time: " + group_);
  }
  auto read = [this, member, kind = message.kind, body = std::move(message.body)] { onBody(member, kind, body); };
  use(inbox_.push(std::move(read), false));
  return {};
}

void Fusion::fail(const Status& why) {
  use(inbox_.pushFirst([this, why] { onFail(why); }));
}

// As if the thread polled or read: nothing that is called in the turn may wait, for it could be for the turn.
void Fusion::use(Turn turn) {
  if (turn != Turn::kRun) return;
  const io::Serving inTurn;
  while (std::optional<Task> task = inbox_.next(true, turn)) {
    try {
      (*task)();
      exchange();
    } catch (const std::bad_alloc&) {
      breakOff(resourceExhausted(link_.nameOf(link_.self()) + " has no memory for pushPull in " + group_));
    }
  }
}

void Fusion::onOffer(const Offered& offered) {
  if (!failure_.ok()) {
    end(*offered, failure_);
    return release(nullptr, 1);
  }
  offered->number = book_.add({offered->name, offered->signature});
  offered_[offered->number] = offered;
  if (offered->ended) return giveUp(offered, offered->failure);  // cancelled; rank 0 counts it all the same
  watch(offered->due);
}

void Fusion::onBody(int member, MessageKind kind, Bytes body) {
  {
    MutexLock lock(mutex_);
    unread_[static_cast<size_t>(member)] -= body.size() + kUnreadMessageBytes;
  }
  if (!failure_.ok()) return;
  const Status taken = kind == MessageKind::kOffers ? takeOffers(member, body) : takeOrders(body);
  if (taken.ok()) return;
  const Status why = dataLoss(taken.message() + ": pushPull in " + group_);
  link_.lose(member, why);
  breakOff(
      dataLoss(link_.nameOf(member) + " broke the protocol: " + why.message()).withWorker(link_.member(member).name));
}

Status Fusion::takeOffers(int member, Bytes body) {
  Result<Offers> offers = parseOffers(body);
  return offers.ok() ? take(member, std::move(*offers)) : std::move(offers).status();
}

Status Fusion::take(int member, Offers offers) {
  watch(deadlineAfter(stallReport_));
  return root_->take(member, std::move(offers), Clock::now());
}

Status Fusion::takeOrders(Bytes body) {
  Result<Orders> orders = parseOrders(body);
  return orders.ok() ? apply(std::move(*orders)) : std::move(orders).status();
}

Status Fusion::apply(Orders orders) {
  if (!orders.parts.empty() && running_.size() == kMostRunning) return dataLoss("it ordered too many sums ahead");
  TREADLE_RETURN_IF_ERROR(book_.take(orders));
  if (!orders.parts.empty()) startBatch(orders.parts);
  for (const Failed& failed : orders.failures) failOffer(Offered(offered_.at(failed.number)), failed.why);
  return {};
}

// Sends what is due. Rank 0 is a member too: what it would send to itself it does at once.
void Fusion::exchange() {
  while (failure_.ok()) {
    std::optional<Offers> offers = book_.next();
    if (!root_ && offers) send(0, MessageKind::kOffers, encode(*offers));
    if (!root_) return;
    if (offers) take(0, std::move(*offers)).ignore();
    auto orders = root_->takeOrders();
    if (orders.empty()) break;
    for (auto& [member, one] : orders)
      member == 0 ? apply(std::move(one)).ignore() : send(member, MessageKind::kOrders, encode(one));
  }
  if (!failure_.ok()) return;
  if (Status overflow = root_->overflow(); !overflow.ok()) breakOff(overflow);
}

void Fusion::send(int member, MessageKind kind, std::vector<std::byte> body) {
  Message message;
  message.kind = kind;
  message.body = std::move(body);
  if (Status sent = link_.send(member, std::move(message)); !sent.ok()) breakOff(sent);
}

// The operation is begun in any case: all members must count alike. If a tensor has been given up here, it fails on
// all.
void Fusion::startBatch(const std::vector<Part>& parts) {
  const uint64_t number = nextBatch_++;
  Batch& batch = running_[number];
  std::vector<BatchPart> own;
  for (const Part& part : parts) {
    const Offered& offered = offered_.at(part.number);
    ++offered->parts;
    if (offered->limit.untilMatched) offered->due = kNever;
    batch.tensors.push_back(offered);
    own.push_back({offered, part.elements});
  }
  const Duration timeout = timeoutOf(own);
  Call call = callOf(std::move(own));
  const bool isInPlace = !call.staging;
  batch.sum = sums_->start(std::move(call), timeout);
  if (isInPlace) batch.tensors.front()->beginSum(number, batch.sum);
  sharedStateOf(batch.sum)->onReady([weak = weak_from_this(), number] {
    if (auto self = weak.lock())
      self->use(self->inbox_.push([fusion = self.get(), number] { fusion->onEnded(number); }, false));
  });
}

// One tensor is summed where it lies, unless that is not this member's to use any more.
Call Fusion::callOf(std::vector<BatchPart> parts) {
  const OfferedTensor& first = *parts.front().tensor;
  Call call{{OperationKind::kAllReduce, first.signature.dataType, first.signature.reduceOp}, {}, {}};
  for (const BatchPart& part : parts) call.description.count += part.elements.count();
  if (parts.size() == 1 && first.failure.ok()) {
    call.output = first.memoryOf(parts.front().elements);
    call.input = call.output;
  } else {
    call.staging = std::make_shared<StagedBatch>(std::move(parts), memory_, link_.nameOf(link_.self()));
  }
  return call;
}

void Fusion::onEnded(uint64_t number) {
  const Batch batch = std::move(running_.extract(number).mapped());
  const Result<io::Unit>& result = sharedStateOf(batch.sum)->result();
  const Status status = result.ok() ? Status() : result.status();
  for (const Offered& offered : batch.tensors) {
    --offered->parts;
    offered->endSum(number);
    status.ok() ? settle(offered) : giveUp(offered, status.withContext(textOf(offered->name, group_)));
  }
  if (root_ && failure_.ok()) root_->ended(number, status);
}

}  // namespace treadle::group
