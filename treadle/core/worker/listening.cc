// Where a worker takes the connections of its peers, and what it tells them of that.

#include <unistd.h>

#include "treadle/core/base/log.h"
#include "treadle/core/worker/core.h"
#include "treadle/core/worker/meeting.h"
#include "treadle/core/worker/security.h"

namespace treadle {
namespace {

std::string randomName() {
  static std::atomic<uint64_t> count = 0;
  return "treadle-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" +
         std::to_string(Clock::now().time_since_epoch().count());
}

}  // namespace

Status Worker::Core::listen() {
  Result<std::vector<io::Address>> wanted = wantedAddresses();
  if (!wanted.ok()) return std::move(wanted).status();
  std::optional<io::Address> tcp;
  for (const io::Address& address : *wanted) {
    TREADLE_RETURN_IF_ERROR(mayUse(address, options, launch, "the listen address " + address.toString()));
    if (address.isAny() && !options.announceAddress)
      return invalidArgument("listenAddress is " + address.toString() +
                             "; it must be one address of this host that the others reach, or announceAddress say it");
    TREADLE_RETURN_IF_ERROR(listenOn(address));
    if (!address.isUnix()) tcp = address;
  }
  return options.announceAddress ? checkAnnounced(tcp) : Status();
}

Result<std::vector<io::Address>> Worker::Core::wantedAddresses() const {
  if (options.listenAddress) {
    Result<io::Address> given = io::Address::parse(*options.listenAddress);
    if (!given.ok()) return given.status().withContext("listenAddress");
    return std::vector{*given};
  }
  Result<io::Address> tcp = reachableAddress(launch, options);
  if (!tcp.ok()) return std::move(tcp).status();
  std::vector<io::Address> wanted;
  // Certificates are for TLS, which UNIX sockets do without: there they would keep nobody out.
  const bool needsCertificates = !tcp->isLoopback() && options.certificatesToUse();
  if (channels.unixSockets && !needsCertificates) wanted.push_back(*io::Address::unixAbstract(randomName()));
  if (channels.tcp) wanted.push_back(*tcp);
  if (!wanted.empty()) return wanted;
  return invalidArgument(
      "this worker was told to use no TCP, and a job across hosts with certificates has no other "
      "channel: add tcp to TREADLE_CHANNELS or JoinOptions::channels");
}

Status Worker::Core::checkAnnounced(const std::optional<io::Address>& listening) const {
  const std::string text = "announceAddress is " + *options.announceAddress;
  if (!listening)
    return invalidArgument(text + ", but this worker listens at no TCP address (listenAddress, channels)");
  Result<io::Address> announced = io::Address::parse(*options.announceAddress);
  if (!announced.ok()) return announced.status().withContext("announceAddress");
  TREADLE_RETURN_IF_ERROR(mayUse(*announced, options, launch, "the announced address " + *options.announceAddress));
  if (credentials_.encrypts(*announced) == credentials_.encrypts(*listening)) return {};
  return invalidArgument(text + " and this worker listens at " + listening->toString() +
                         "; one of them is on the loopback and the other is not, so the two ends of a link would not "
                         "agree on whether it is encrypted: set JoinOptions::tls or TREADLE_TLS to always in all of "
                         "the job");
}

Status Worker::Core::listenOn(const io::Address& address) {
  Result<io::Fd> listener = io::listenOn(address);
  if (!listener.ok()) return std::move(listener).status();
  link::Acceptor::Host host;
  host.check = [this](const link::Hello& hello) {
    if (hello.purpose == link::Purpose::kRendezvous)
      return failedPrecondition("the workers do not meet at this address");
    if (hello.purpose == link::Purpose::kSummation) return summations->check(hello.worker.rank, hello.number);
    // Before the welcome: a lane that closes after it would take its connection along.
    if (hello.purpose != link::Purpose::kPeer && !channels.lanes)
      return failedPrecondition("it was told to use no lanes (TREADLE_CHANNELS or JoinOptions::channels)");
    bool inWorld = hello.worker.rank >= 0 && hello.worker.rank < membership->worldSize();
    return inWorld ? Status() : invalidArgument("its rank is not in this job");
  };
  host.accept = [this](io::Stream stream, link::Hello hello) {
    if (hello.purpose == link::Purpose::kPeer) return onPeer(hello.worker, std::move(stream));
    Status attached = hello.purpose == link::Purpose::kSummation
                          ? summations->attach(hello.worker.rank, hello.number, std::move(stream))
                          : membership->attachLane(hello.worker.rank, std::move(stream), hello.purpose);
    if (!attached.ok()) logWarn(self.name, "a connection was refused: " + attached.message());
  };
  auto acceptor = link::Acceptor::start(*reactor, std::move(*listener), credentials_, std::move(host));
  if (!acceptor.ok()) return std::move(acceptor).status();
  listening_.push_back((*acceptor)->address().toString());
  acceptors.push_back(std::move(*acceptor));
  return {};
}

void Worker::Core::onPeer(const WorkerInfo& worker, io::Stream stream) {
  Status attached = membership->attach(worker, std::move(stream), link::Connection::Kind::kServing);
  if (!attached.ok()) return logWarn(self.name, "a connection was refused: " + attached.message());
  if (dialsBack_ && worker.rank > self.rank && membership->coming(worker.rank)) dialBack(worker);
}

// At most one address is TCP (`listen`).
std::vector<std::string> Worker::Core::announced() const {
  std::vector<std::string> texts;
  for (const auto& acceptor : acceptors) {
    const bool elsewhere = options.announceAddress && !acceptor->address().isUnix();
    texts.push_back(elsewhere ? *options.announceAddress : acceptor->address().toString());
  }
  return texts;
}

}  // namespace treadle
