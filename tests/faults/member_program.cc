// The victim among three members of process groups: member_program ADDRESS. Listens at the address, which it prints;
// takes two connections from each other member, first the one that serves the peer's calls. Takes its part in all cases
// of the fault matrix, prints "there" when it has come to its phase in each, and waits to be killed.

#include <unistd.h>

#include <iostream>
#include <stdexcept>

#include "tests/faults/member.h"
#include "treadle/core/io/socket.h"

namespace {

using namespace treadle;
using test::kMembers;

class Victim {
 public:
  explicit Victim(const char* address)
      : pool_(valueOrThrow(memory::BlockPool::make(256U << 20))), member_(kMembers.victim, *pool_, test::kHangs) {
    io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse(address))));
    std::cout << valueOrThrow(io::Address::ofSocket(listener.get())).toString() << std::endl;
    for (int peer = 0; peer < kMembers.size; ++peer)
      if (peer != kMembers.victim)
        for (auto kind : {link::Connection::Kind::kServing, link::Connection::Kind::kCalls}) {
          io::waitFor(listener.get(), POLLIN, kNever);
          member_.attach(peer, valueOrThrow(io::acceptFrom(listener.get())), kind);
        }
    if (!test::eventually([&] { return member_.lendsTo(0) && member_.lendsTo(2); }))
      throw std::runtime_error("it cannot lend memory");
  }

  void takeItsPart() {
    const std::vector<test::Case> cases = test::memberCases();
    test::Seat& seat = member_.seat();
    for (size_t index = 0; index < cases.size(); ++index) {
      seat.meet(cases[index]).wait();
      seat.setRule(index, cases[index]);
    }
    member_.ready().wait();
    for (size_t index = 0; index < cases.size(); ++index) seat.call(index, cases[index].cell);
    for (size_t index = 0; index < cases.size(); ++index) waitForPhase(index, cases[index]);
    if (pool_->counters().usedBytes == 0) throw std::runtime_error("it lends nothing");
  }

 private:
  void waitForPhase(size_t index, const test::Case& one) {
    if (one.heldMember() == kMembers.victim) member_.seat().waitUntilHeld(index);
    if (!one.endsWell[static_cast<size_t>(kMembers.victim)]) return;
    Future<void> call = member_.seat().calls(index).front().future;
    call.wait();
  }

  const std::shared_ptr<memory::BlockPool> pool_;
  test::Member member_;
};

}  // namespace

int main(int, char** arguments) try {
  Victim victim(arguments[1]);
  victim.takeItsPart();
  std::cout << "there" << std::endl;
  for (;;) ::pause();
} catch (const std::exception& error) {
  std::cerr << "victim: " << error.what() << std::endl;
  return 1;
}
