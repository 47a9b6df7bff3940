#include "treadle/core/worker/meeting.h"

#include "treadle/core/cluster/key_service.h"
#include "treadle/core/cluster/meeting_file.h"
#include "treadle/core/worker/security.h"

namespace treadle {
namespace {

Status checkAcrossHosts(const io::Address& address, const Launch& launch, const JoinOptions& options) {
  if (address.isUnix() || address.isLoopback()) return {};
  if (launch.jobKey.empty() && !needsNoKey(address, options))
    return failedPrecondition("a job across hosts needs a key: give all workers the same TREADLE_JOB_KEY");
  return {};
}

Result<std::vector<io::Address>> masterAddresses(const Launch& launch, const JoinOptions& options) {
  std::vector<io::Address> addresses;
  for (uint16_t port : launch.meetingPorts()) {
    Result<io::Address> address = io::Address::tcp(launch.masterAddress, port);
    if (!address.ok()) return address.status().withContext("MASTER_ADDR");
    addresses.push_back(std::move(*address));
  }
  const io::Address& host = addresses.front();
  TREADLE_RETURN_IF_ERROR(mayUse(host, options, launch, "the master's address " + launch.masterAddress));
  TREADLE_RETURN_IF_ERROR(checkAcrossHosts(host, launch, options));
  return addresses;
}

// It may be of a job before: the next look may find another.
Result<std::vector<io::Address>> writtenAddress(const Launch& launch, const JoinOptions& options) {
  Result<io::Address> written = cluster::readMeetingFile(launch.meetingFile);
  if (!written.ok()) return std::move(written).status();
  Status usable = mayUse(*written, options, launch, "the address in " + launch.meetingFile);
  if (!usable.ok()) return notFound(usable.message());
  return std::vector{*written};
}

}  // namespace

Result<std::vector<io::Address>> listenAddresses(const Launch& launch, const JoinOptions& options) {
  if (launch.meetingFile.empty()) return masterAddresses(launch, options);
  Result<io::Address> address =
      options.listenAddress ? io::Address::parse(*options.listenAddress) : io::Address::tcp("127.0.0.1", 0);
  if (!address.ok()) return address.status().withContext("listenAddress");
  TREADLE_RETURN_IF_ERROR(checkAcrossHosts(*address, launch, options));
  if (address->isAny())
    return invalidArgument(
        "listenAddress is " + *options.listenAddress +
        "; for a job that meets by a file it must be one address of this host, as it is written there");
  return std::vector{address->withPort(0)};
}

Result<io::Address> reachableAddress(const Launch& launch, const JoinOptions& options) {
  Result<std::vector<io::Address>> places = listenAddresses(launch, options);
  if (!places.ok()) return std::move(places).status();
  const io::Address& place = places->front();
  if (place.isLoopback()) return io::Address::tcp("127.0.0.1", 0);
  if (options.announceAddress)
    return invalidArgument("announceAddress is " + *options.announceAddress +
                           ", and listenAddress does not say to which address and port of this host it leads");
  if (place.isAny())
    return invalidArgument(
        "the master's address is " + place.host() +
        ", which leads to no host: give rank 0 the address that the others have, or a listenAddress");
  Result<io::Address> own = io::Address::towards(place);
  if (own.ok()) return own;
  return own.status().withContext("this worker needs JoinOptions::listenAddress, an address that the others reach");
}

Result<cluster::MasterAddresses> whereToMeet(const Launch& launch, const JoinOptions& options) {
  if (!launch.meetingFile.empty())
    return cluster::MasterAddresses([&launch, &options] { return writtenAddress(launch, options); });
  Result<std::vector<io::Address>> known = masterAddresses(launch, options);
  if (!known.ok()) return std::move(known).status();
  return cluster::MasterAddresses([known = std::move(*known)] { return Result(known); });
}

Result<link::Credentials> credentialsAtMeeting(const WorkerInfo& self, const Launch& launch, const JoinOptions& options,
                                               TimePoint deadline, MakeKey makeKey) {
  Result<std::string> key = launch.secret();
  if (launch.jobKey.empty()) {
    Result<std::vector<io::Address>> places = listenAddresses(launch, options);
    if (!places.ok()) return std::move(places).status();
    if (!needsNoKey(places->front(), options))
      key = makeKey ? makeKey() : cluster::fetchKey(launch.meetingName(), deadline);
  }
  if (!key.ok()) return std::move(key).status();
  return credentialsOf(self, std::move(*key), options);
}

}  // namespace treadle
