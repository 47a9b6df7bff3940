#include "treadle/core/cluster/launch.h"

#include <array>
#include <charconv>
#include <optional>

#include "treadle/core/base/environment.h"
#include "treadle/core/base/hash.h"
#include "treadle/core/cluster/job_key.h"
#include "treadle/core/cluster/launch_variables.h"
#include "treadle/core/cluster/launchers.h"

namespace treadle::cluster {
namespace {

// Of ports that are derived: above those of services, below those that systems give to outgoing connections.
constexpr uint16_t kFirstPort = 10'000, kPorts = 22'768;
constexpr int kPortsToTry = 8;

// How many ranks are servers, where the launcher's variables do not say it.
Result<int> readServers(const Launch& launch) {
  const std::optional<std::string> text = base::environment("TREADLE_SERVERS");
  if (!text || text->empty()) return 0;
  Result<int> servers = numberIn("TREADLE_SERVERS", *text, 0, kMaxWorldSize);
  if (!servers.ok() || *servers == 0 || launch.open() || *servers < launch.worldSize) return servers;
  return wrong(
      "TREADLE_SERVERS", *text,
      "less than the " + std::to_string(launch.worldSize) + " ranks of the job, of which at least rank 0 is no server");
}

// Where the workers are to meet.
Status validateMeeting(const Launch& launch) {
  if (!launch.meetingFile.empty())
    return launch.meetingFile.front() == '/'
               ? Status()
               : invalidArgument("the meeting file is " + quoted(launch.meetingFile) +
                                 ", not an absolute path: all workers must mean the same file");
  if (!isHost(launch.masterAddress))
    return invalidArgument("the master's address is " + quoted(launch.masterAddress) +
                           ", not a host name or an IP address");
  if (launch.masterPort == 0 && launch.job.empty())
    return invalidArgument("the master's port is 0: give the port on which rank 0 shall listen");
  return {};
}

}  // namespace

Result<Launch> Launch::detect() {
  Result<std::optional<Launch>> found = readLaunchers();
  if (!found.ok()) return std::move(found).status();
  if (!found->has_value())
    return failedPrecondition("this program is not part of a job: no launcher's environment variables are set; " +
                              std::string(kHowToStart));
  Launch launch = **std::move(found);
  Result<std::string> key = readJobKey();
  if (!key.ok()) return std::move(key).status();
  launch.jobKey = std::move(*key);
  Result<int> servers = readServers(launch);
  if (!servers.ok()) return std::move(servers).status();
  launch.servers = *servers;
  TREADLE_RETURN_IF_ERROR(launch.validate());
  return launch;
}

std::vector<uint16_t> Launch::meetingPorts() const {
  if (job.empty()) return {masterPort};
  std::vector<uint16_t> ports;
  for (int i = 0; i < kPortsToTry; ++i)
    ports.push_back(static_cast<uint16_t>(kFirstPort + base::fnv1a(job + " " + std::to_string(i)) % kPorts));
  return ports;
}

std::string Launch::meetingName() const {
  if (job.empty() && meetingFile.empty()) return std::to_string(masterPort);
  std::array<char, 16> digits{};
  auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(),
                                    base::fnv1a(job.empty() ? "file " + meetingFile : job), 16);
  return {digits.data(), end};
}

std::string Launch::secret() const { return jobKey.empty() || job.empty() ? jobKey : jobKey + " " + job; }

Status Launch::validate() const {
  if (!open() && (worldSize < 1 || worldSize > kMaxWorldSize))
    return invalidArgument("the world size is " + std::to_string(worldSize) + ", not a number from 1 to " +
                           std::to_string(kMaxWorldSize));
  if (open() && rank != 0 && rank != kAnyRank)
    return invalidArgument("the rank is " + std::to_string(rank) +
                           " but in an open job ranks are given out: the first worker has rank 0 and the others "
                           "kAnyRank (TREADLE_RANK=any)");
  if (!open() && (rank < 0 || rank >= worldSize))
    return invalidArgument("the rank is " + std::to_string(rank) + " but ranks of a job of " +
                           std::to_string(worldSize) + " count from 0 to " + std::to_string(worldSize - 1));
  if (open() && servers != 0)
    return invalidArgument("an open job has no servers (TREADLE_SERVERS): start it with a fixed number of workers");
  if (!open() && (servers < 0 || servers >= worldSize))
    return invalidArgument(std::to_string(servers) + " of the " + std::to_string(worldSize) +
                           " ranks of the job are to be servers; leave at least rank 0 to a worker");
  TREADLE_RETURN_IF_ERROR(validateMeeting(*this));
  if (!jobKey.empty() && (jobKey.size() < kMinJobKeyLength || jobKey.size() > kMaxJobKeyLength))
    return invalidArgument("the job key (TREADLE_JOB_KEY) has " + std::to_string(jobKey.size()) + " characters, not " +
                           std::to_string(kMinJobKeyLength) + " to " + std::to_string(kMaxJobKeyLength) +
                           "; `openssl rand -hex 32` makes a good one");
  return {};
}

}  // namespace treadle::cluster
