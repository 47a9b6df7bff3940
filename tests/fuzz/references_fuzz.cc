// The references of one worker among two peers that may say anything about them (rpc/references.h): their notices, the
// forks in their messages and their requests, between what this worker does itself. What must hold: a value lives while
// this worker holds it or a peer that told no lie does; and when all are gone, nothing is left.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/rpc/references.h"

namespace treadle::fuzz::references_fuzz {
namespace {

using rpc::ForkEntry;
using rpc::GlobalId;
using rpc::HandlePtr;
using rpc::OwnedValue;
using rpc::References;
using rpc::RefNotice;

constexpr int kWorld = 3;  // this worker, one that lies, and one that does not say a word

class Scene {
 public:
  explicit Scene(Bytes input) : choices_(input) {}

  void play() {
    HandlePtr given = own();
    const std::weak_ptr<void> value = references_->valueOf(given)->value;
    ForkEntry fork = references_->fork(given, 2);
    given.reset();
    while (choices_.any()) {
      step();
      promise(!value.expired(), "a peer's words end no reference of another one");
      for (const HandlePtr& handle : owned_)
        promise(references_->valueOf(handle).has_value(), "a value lives as long as this worker holds it");
    }
    references_->onNotice(2, RefNotice::kForkDeleted, fork).ignore();
    end();
    promise(value.expired(), "a value goes with its last reference");
  }

 private:
  // Numbers of this worker's counter among them, as a peer may guess them.
  GlobalId id() {
    auto byte = choices_.number<uint8_t>();
    return {byte % kWorld, static_cast<uint64_t>(byte / kWorld % 16)};
  }
  ForkEntry entry() {
    GlobalId ref = id();
    int owner = static_cast<int>(choices_.below(kWorld));
    return {ref, owner, id()};
  }
  int peer() { return 1; }
  HandlePtr* anyHeld() { return held_.empty() ? nullptr : &held_[choices_.below(held_.size())]; }

  OwnedValue newValue() {
    auto value = std::make_shared<int>(1);
    values_.push_back(value);
    return {value, &typeid(int), nullptr};
  }
  HandlePtr own() { return references_->own(newValue()); }
  void fulfil(const GlobalId& ref) { references_->fulfil(ref, newValue()); }

  void step() {
    switch (choices_.below(15)) {
      case 0: return owned_.push_back(own());
      case 1: return ask();
      case 2: return references_->confirm(entry(), choices_.below(2) == 0 ? Status() : notFound("it is not there"));
      case 3: return passOn();
      case 4: return unfork();
      case 5: return take({entry(), entry()});
      case 6: return request();
      case 7: return fulfilOne();
      case 8: return drop(held_);
      case 9: return drop(owned_);
      case 10: return wait();
      case 11: return (void)references_->resendDeletions();
      case 12: return (void)references_->wantedByOthers(id(), peer());
      default: references_->onNotice(peer(), RefNotice{static_cast<uint8_t>(1 + choices_.below(5))}, entry()).ignore();
    }
  }
  // The engine confirms each request of this worker that has been answered, at the latest when its callee is lost.
  void ask() {
    held_.push_back(references_->expect(static_cast<int>(choices_.below(kWorld))));
    asked_.push_back(held_.back()->entry());
  }
  void passOn() {
    if (HandlePtr* handle = anyHeld())
      forks_.push_back(references_->fork(*handle, 1 + static_cast<int>(choices_.below(2))));
  }
  void unfork() {
    if (forks_.empty()) return;
    references_->unfork({forks_.back()});
    forks_.pop_back();
  }
  // The engine cuts off who gives what it may not.
  void take(const std::vector<ForkEntry>& entries) {
    if (!references_->checkGiven(peer(), entries).ok()) return;
    for (const ForkEntry& one : entries) promise(one.fork.rank == peer(), "who gives a fork has numbered it");
    for (HandlePtr& handle : references_->adopt(peer(), entries)) held_.push_back(std::move(handle));
  }
  // And fulfils each request that has come, in its own time.
  void request() {
    ForkEntry asked = entry();
    if (!references_->checkGiven(peer(), {}, &asked).ok()) return;
    promise(asked.ref.rank == peer() && asked.owner == 0, "a result has the name that its caller gave it");
    references_->adoptRequested(peer(), asked);
    requested_.push_back(asked.ref);
  }
  void fulfilOne() {
    if (requested_.empty()) return;
    fulfil(requested_.back());
    requested_.pop_back();
  }
  void drop(std::vector<HandlePtr>& handles) {
    if (handles.empty()) return;
    std::swap(handles[choices_.below(handles.size())], handles.back());
    handles.pop_back();
  }
  void wait() {
    GlobalId ref = id();
    auto called = std::make_shared<bool>(false);
    uint64_t number = references_->whenReady(ref, [called](const Result<OwnedValue>&) {
      promise(!std::exchange(*called, true), "who waits is called once");
    });
    if (number != 0 && choices_.below(2) == 0) references_->stopWaiting(ref, number);
  }

  void end() {
    while (!requested_.empty()) fulfilOne();
    for (const ForkEntry& asked : asked_) references_->confirm(asked, cancelled("the end"));
    held_.clear();
    owned_.clear();
    for (int rank = 1; rank < kWorld; ++rank) references_->onLost(rank, peerLost("peer", "it is gone"));
    References::Counts counts = references_->counts();
    promise(counts.owned == 0 && counts.forks == 0, "no value is kept for those who are gone");
    promise(counts.held == 0 && counts.pending == 0, "and nothing of theirs");
    for (const auto& value : values_) promise(value.expired(), "every value is destroyed");
  }

  Choices choices_;
  std::shared_ptr<References> references_ = std::make_shared<References>(
      0, [](int rank, RefNotice, const ForkEntry&) { promise(rank >= 0 && rank < kWorld, "notices go to workers"); });
  std::vector<HandlePtr> held_, owned_;
  std::vector<ForkEntry> forks_, asked_;
  std::vector<GlobalId> requested_;
  std::vector<std::weak_ptr<int>> values_;
};

void feed(Bytes input) { Scene(input).play(); }

Inputs seeds() {
  return {row({0, 9, 0}),
          row({1, 1, 8, 0}),                       // a value is asked for at a peer and let go of
          row({6, 4, 0, 5, 7, 13, 3, 4, 0, 5}),    // a peer asks for a value and deletes its fork
          row({5, 4, 1, 5, 7, 1, 8, 3, 0, 0, 8}),  // forks come, one is passed on
          row({13, 0, 3, 0, 6}),
          row({10, 4, 0, 10, 4, 1}),
          row({2, 0, 1, 2, 0, 11, 12, 3})};
}

const Fuzzer kReferences("references", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::references_fuzz
