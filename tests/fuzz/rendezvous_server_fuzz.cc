// Rank 0's side of the rendezvous (cluster/rendezvous.h) with guests that know the job's key and say anything in any
// order: all go when all have done their part and nobody anything else; otherwise all that are there are told why not.

#include "tests/fuzz/meeting_guest.h"

namespace treadle::fuzz::rendezvous_server_fuzz {
namespace {

constexpr int kWorld = 3;

using cluster::Step;

// What the guests have done so far, by what the page of the protocol says.
class Model {
 public:
  bool connecting() const { return registered_.size() == kWorld; }
  bool over() const { return failed_ || ready_.size() == kWorld; }
  bool failed() const { return failed_; }
  bool admits(int rank) const { return rank >= 0 && rank < kWorld && (failed_ || !connecting()); }

  void come(const WorkerInfo& worker) {
    if (!over() && !present_.insert(worker.rank).second) failed_ = true;
  }
  void go() { failed_ = failed_ || !over(); }
  void hear(const WorkerInfo& from, Bytes message) {
    if (over()) return;
    Result<cluster::RendezvousMessage> parsed = cluster::parseRendezvous(message);
    if (parsed.ok() && parsed->step == Step::kEcho) return;  // of no effect
    const bool fine = parsed.ok() && ((parsed->step == Step::kRegister && enter(from, parsed->registration)) ||
                                      (parsed->step == Step::kReady && connecting()));
    if (fine && parsed->step == Step::kReady) ready_.insert(from.rank);
    failed_ = !fine;
  }

 private:
  bool enter(const WorkerInfo& worker, const cluster::Registration& registration) {
    const bool known = std::any_of(registered_.begin(), registered_.end(), [&](const auto& one) {
      return one.first == worker.rank || one.second == worker.name;
    });
    if (known || registration.world != kWorld) return false;
    registered_.emplace(worker.rank, worker.name);
    return true;
  }

  std::set<int> present_, ready_;
  std::map<int, std::string> registered_;
  bool failed_ = false;
};

class Meeting {
 public:
  explicit Meeting(Bytes input)
      : choices_(input),
        reactor_(valueOrThrow(io::Reactor::make())),
        address_(valueOrThrow(io::Address::unixAbstract("treadle-fuzz-meeting-" + std::to_string(::getpid())))),
        server_(valueOrThrow(cluster::RendezvousServer::start(*reactor_, {address_},
                                                              {kMeetingKey, {link::Purpose::kRendezvous, {"w0", 0}}},
                                                              kWorld, kNoTimeout, kNever))) {
    server_->measureFrom({}, true);
  }

  void play() {
    while (choices_.any()) {
      act();
      for (bool more = true; more;) {
        pollAll(*reactor_);
        more = false;
        for (MeetingGuest& guest : guests_) more = guest.hear() || more;
      }
      check();
    }
    server_->stop();
  }

 private:
  void act() {
    const size_t what = choices_.below(8);
    if (what < 2) return come();
    if (guests_.empty()) return;
    MeetingGuest& guest = guests_[choices_.below(guests_.size())];
    if (guest.gone() || !guest.in()) return;
    switch (what) {
      case 2:
      case 3: return say(guest, cluster::encodeRegistration({kWorld, {"unix:x"}, kNoTimeout}));
      case 4: return say(guest, cluster::encodeStep(Step::kReady));
      case 5: return say(guest, other());
      case 6: {
        Bytes raw = choices_.bytes(choices_.below(40));
        return say(guest, {raw.begin(), raw.end()});
      }
      default: guest.go(); model_.go();
    }
  }
  void come() {
    if (guests_.size() == 8) return;
    const int rank = static_cast<int>(choices_.below(kWorld + 2)) - 1;
    const bool welcome = model_.admits(rank);
    const WorkerInfo worker{std::string(1, static_cast<char>('a' + choices_.below(4))), rank};
    MeetingGuest& guest = guests_.emplace_back(*reactor_, address_, worker);
    guest.hear();
    promise(guest.in() == welcome, "in is who may come");
    if (welcome) model_.come(worker);
  }
  void say(MeetingGuest& guest, const std::vector<std::byte>& message) {
    guest.say(message);
    // Of two that have one rank nobody is listened to any more.
    model_.hear(guest.worker(), message);
  }
  std::vector<std::byte> other() {
    switch (choices_.below(5)) {
      case 0: return cluster::encodeRegistration({static_cast<int>(choices_.below(5)), {}, kNoTimeout});
      case 1: return cluster::encodeFailure(internalError("no room"));
      case 2: return cluster::encodeStep(Step::kGo);
      case 3: return cluster::encodeEcho(choices_.below(20));
      default: return cluster::encodeRank(Step::kRank, 1);
    }
  }

  void check() {
    for (const MeetingGuest& guest : guests_) {
      if (!guest.in() || guest.gone()) continue;
      promise(guest.heard(Step::kFail) == model_.failed(), "all are told when the job does not start, and only then");
      promise(guest.heard(Step::kGo) == (model_.over() && !model_.failed()), "all go when all are ready");
      if (!guest.heard(Step::kRoster)) continue;
      promise(model_.connecting() && guest.roster().size() == kWorld, "a roster has all");
      promise(guest.heard(Step::kProbe) <= (guest.worker().rank == 1), "one worker of rank 0's host is measured");
    }
  }

  Choices choices_;
  std::unique_ptr<io::Reactor> reactor_;
  const io::Address address_;
  std::unique_ptr<cluster::RendezvousServer> server_;
  std::vector<MeetingGuest> guests_;
  Model model_;
};

void feed(Bytes input) { Meeting(input).play(); }

Inputs seeds() {
  const auto come = row({0, 1, 0, 0, 2, 1, 0, 3, 2}), enter = row({2, 0, 2, 1, 2, 2}), ready = row({4, 0, 4, 1, 4, 2});
  return {joined({come, enter, ready}),
          joined({come, enter, row({7, 1}), ready}),
          joined({come, row({2, 0, 2, 0})}),
          joined({come, row({5, 0, 0, 2})}),
          joined({come, row({5, 1, 1}), row({0, 1, 3})}),
          joined({come, row({6, 0, 3, 1, 2, 3})}),
          joined({come, enter, row({0, 2, 3}), ready}),
          row({0, 1, 0, 0, 1, 1}),
          row({0, 0, 0, 0, 4, 0})};
}

const Fuzzer kRendezvousServer("rendezvous_server", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::rendezvous_server_fuzz
