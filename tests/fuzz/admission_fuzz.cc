// How workers come into an open job (cluster/admission.h): guests that know its key and those who are there say
// anything in any order. One guest is let in at a time, when it and all who are there have done their part; whoever is
// turned away is told so, and the next has its turn.

#include "tests/fuzz/meeting_guest.h"
#include "treadle/core/cluster/admission.h"
#include "treadle/core/cluster/launch.h"

namespace treadle::fuzz::admission_fuzz {
namespace {

using cluster::Step;

constexpr int kPresent = 2;  // at the start

// What one guest, and those who are there about it, have said in their turn.
struct Steps {
  bool registered = false, ready = false;
  bool mayConnect = false, in = false;  // as it was told
  std::set<int> admittedBy, connectedBy;
};

class OpenDoor {
 public:
  explicit OpenDoor(Bytes input)
      : choices_(input),
        member_(0, kPresent, true),
        keeper_(member_.membership()),
        address_(valueOrThrow(io::Address::unixAbstract("treadle-fuzz-door-" + std::to_string(::getpid())))) {
    keeper_.begin(true);
    admission_ = valueOrThrow(
        cluster::Admission::start(member_.reactor(), {address_}, {kMeetingKey, {link::Purpose::kRendezvous, {"w0", 0}}},
                                  member_.membership(), keeper_, kPresent, [](const std::vector<int>& ranks) {
                                    cluster::Roster roster;
                                    for (int rank : ranks)
                                      roster.push_back({{"w" + std::to_string(rank), rank}, {"unix:x"}});
                                    return roster;
                                  }));
  }

  void play() {
    while (choices_.any()) {
      act();
      pollAll(member_.reactor());
      for (MeetingGuest& guest : guests_) guest.hear();
      check();
    }
    keeper_.end();
    admission_->stop(cancelled("the end"));
  }

 private:
  void act() {
    const size_t what = choices_.below(10);
    if (what < 2) return come();
    if (what > 6) return sayOfGuests(what);
    if (guests_.empty()) return;
    MeetingGuest& guest = guests_[choices_.below(guests_.size())];
    if (guest.gone() || !guest.in()) return;
    Steps& steps = steps_[guest.rank()];
    switch (what) {
      case 2:
        steps.registered = true;
        expectGuest(guest);
        return guest.say(cluster::encodeRegistration({cluster::kOpenWorld, {"unix:x"}, kNoTimeout}));
      case 3:
        steps.ready = steps.ready || guest.heard(Step::kPresent);
        return guest.say(cluster::encodeStep(Step::kReady));
      case 4: return guest.say(cluster::encodeFailure(internalError("no room")));
      case 5: return guest.say(choices_.bytes(choices_.below(40)));
      default: guest.go();
    }
  }
  void come() {
    if (guests_.size() == 8) return;
    const int rank = choices_.below(8) == 0 ? 1 : cluster::kAnyRank;
    const std::string name = choices_.below(4) == 0 ? "w1" : std::string(1, static_cast<char>('a' + choices_.below(3)));
    MeetingGuest& guest = guests_.emplace_back(member_.reactor(), address_, WorkerInfo{name, rank});
    guest.hear();
    promise(guest.in() == (rank == cluster::kAnyRank), "in is who leaves its rank to the job");
  }
  // Those who are there take its connections from now on, as they do when they are told of it.
  void expectGuest(const MeetingGuest& guest) {
    if (guest.rank() >= 0 && !guest.heard(Step::kFail) && !guest.heard(Step::kPresent))
      member_.membership().expect({guest.worker().name, guest.rank()});
  }
  void sayOfGuests(size_t what) {
    const int from = static_cast<int>(choices_.below(kPresent + 2)), rank = static_cast<int>(choices_.below(10));
    const std::vector<int> present = member_.membership().present();
    if (std::find(present.begin(), present.end(), from) == present.end()) return;
    if (what == 9) {
      if (from != 0) member_.membership().lose(from, cancelled("the fuzzer says so"));
      return keeper_.onLost(from);
    }
    const auto kind = what == 7 ? cluster::ClusterKind::kAdmitted : cluster::ClusterKind::kConnected;
    Steps& steps = steps_[rank];
    if (steps.registered) (what == 7 ? steps.admittedBy : steps.connectedBy).insert(from);
    auto message = cluster::parseClusterMessage(cluster::encodeRank(kind, rank));
    if (!message.ok()) return;
    promise(keeper_.onMessage(from, std::move(*message)).ok(), "what a member may say breaks no protocol");
  }

  void check() {
    std::set<int> ranks;
    size_t underWay = 0, withTurn = 0;
    for (const MeetingGuest& guest : guests_) {
      if (guest.rank() >= 0) promise(ranks.insert(guest.rank()).second && guest.rank() >= kPresent, "a rank is of one");
      const bool over = guest.heard(Step::kGo) || guest.heard(Step::kFail);
      promise(!(guest.heard(Step::kPresent) && guest.rank() < 0), "who connects has a rank");
      if (guest.in() && !guest.gone() && !over) {
        ++underWay;
        withTurn += guest.rank() >= 0 ? 1 : 0;
      }
      if (guest.in() && !guest.gone() && guest.rank() >= 0) checkProgress(guest, steps_[guest.rank()]);
    }
    promise(withTurn == std::min<size_t>(underWay, 1), "one of those that wait has its turn");
  }
  // At the moment in which it is told, as others may be there later.
  void checkProgress(const MeetingGuest& guest, Steps& steps) {
    const bool known = steps.registered && all(steps.admittedBy, guest), connected = all(steps.connectedBy, guest);
    if (!steps.mayConnect && guest.heard(Step::kPresent)) promise(known, "all know of who connects");
    if (!steps.in && guest.heard(Step::kGo)) promise(steps.ready && connected, "who is let in and all have connected");
    steps.mayConnect = guest.heard(Step::kPresent);
    steps.in = guest.heard(Step::kGo);
    if (guest.heard(Step::kFail)) return;
    promise(steps.mayConnect || !known, "it connects when all know of it");
    promise(steps.in || !steps.ready || !connected, "it is in when all have connected");
  }
  // Of those who are there but for the guest itself.
  bool all(const std::set<int>& who, const MeetingGuest& guest) {
    const std::vector<int> present = member_.membership().present();
    return std::all_of(present.begin(), present.end(),
                       [&](int rank) { return rank == guest.rank() || who.contains(rank); });
  }

  Choices choices_;
  SilentMember member_;
  cluster::Keeper keeper_;
  const io::Address address_;
  std::unique_ptr<cluster::Admission> admission_;
  std::vector<MeetingGuest> guests_;
  std::map<int, Steps> steps_;  // by the guest's rank
};

void feed(Bytes input) { OpenDoor(input).play(); }

Inputs seeds() {
  const auto come = row({0, 1, 1, 0}), other = row({0, 1, 1, 1});
  const auto enter = row({2, 0}), admit = row({7, 0, 2, 7, 1, 2}), connect = row({8, 0, 2, 8, 1, 2}),
             ready = row({3, 0});
  return {joined({come, enter, admit, connect, ready}),
          joined({come, other, enter, admit, ready, connect, row({2, 1, 7, 0, 3, 7, 1, 3, 3, 1, 8, 0, 3, 8, 1, 3})}),
          joined({come, other, enter, row({6, 0}), row({2, 1})}),
          joined({come, enter, row({9, 1}), admit, connect, ready}),
          joined({come, enter, admit, row({9, 1}), connect, ready}),
          joined({come, row({0, 1, 0}), row({4, 0}), other}),
          joined({come, row({5, 0, 3, 1, 2, 3}), other}),
          joined({come, come, enter, admit, connect, ready}),
          row({0, 0, 1, 0})};
}

const Fuzzer kAdmission("admission", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::admission_fuzz
