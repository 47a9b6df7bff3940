#include "treadle/core/cluster/meeting_point.h"

#include "treadle/core/base/log.h"

namespace treadle::cluster {

Result<Acceptors> acceptAtMeeting(io::Reactor& reactor, const std::vector<io::Address>& addresses,
                                  const link::Credentials& credentials,
                                  const std::function<link::Acceptor::Host()>& makeHost) {
  Acceptors acceptors;
  const auto acceptAt = [&](Result<io::Fd> listener) -> Status {
    if (!listener.ok()) return std::move(listener).status();
    auto acceptor = link::Acceptor::start(reactor, std::move(*listener), credentials, makeHost());
    if (!acceptor.ok()) return std::move(acceptor).status();
    acceptors.push_back(std::move(*acceptor));
    return {};
  };
  TREADLE_RETURN_IF_ERROR(acceptAt(io::listenOnFirst(addresses)));
  const io::Address& port = acceptors.front()->address();
  const std::optional<io::Address> socket = credentials.meetingSocket(port);
  const Status beside = socket ? acceptAt(io::listenOn(*socket)) : Status();
  if (!beside.ok())
    logWarn(credentials.self.worker.name, "workers can meet at " + port.toString() + " only: " + beside.message());
  return acceptors;
}

}  // namespace treadle::cluster
