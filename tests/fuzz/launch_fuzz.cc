// The environment as launchers leave it (cluster/launch.h), and the messages of the status socket, in both directions
// (cluster/status_socket.h). An input is a row of variables, each with its value, which is read as a message too.

#include <algorithm>
#include <cstdlib>

#include "tests/fuzz/fuzzer.h"
#include "tests/support/launch_environment.h"
#include "treadle/core/cluster/status_socket.h"

namespace treadle::fuzz::launch_fuzz {
namespace {

constexpr const auto& kNames = test::kLaunchVariables;
constexpr size_t kJobKey = 3;

void checkLaunch(const Launch& launch) {
  promise(launch.validate().ok(), "what is detected is valid");
  promise(!launch.meetingPorts().empty() && !launch.meetingName().empty(), "there is a place to meet");
  const bool told = !launch.meetingFile.empty();  // the file says where rank 0 listens: any port will do
  for (uint16_t port : launch.meetingPorts()) promise(told || port != 0, "a port that others can know");
  promise(launch.meetingName().size() <= 16, "a name that fits into a socket's");
}

// With this in front a key is no part of another text, but by another variable that has it too.
constexpr std::string_view kMark = "~secret~";

bool isSecret(const char* key) {
  if (key == nullptr || !std::string_view(key).starts_with(kMark)) return false;
  return std::count_if(kNames.begin(), kNames.end(), [&](const char* name) {
           const char* value = std::getenv(name);
           return value != nullptr && std::string_view(value).find(kMark) != std::string_view::npos;
         }) == 1;
}

void checkFailure(const Status& why) {
  bool named = why.code() == Code::kInvalidArgument || why.code() == Code::kFailedPrecondition;
  promise(named, "a wrong environment is told so");
  const char* key = std::getenv("TREADLE_JOB_KEY");
  promise(!isSecret(key) || why.message().find(kMark) == std::string::npos, "the key is in no message");
  for (char c : why.message()) promise(c >= ' ' && c != 0x7f, "a message holds no control characters");
  promise(why.message().size() < 1000, "a message is a sentence");
}

void checkMessage(std::string_view text) {
  std::string name = cluster::nameFromMessage(text);
  promise(name.empty() || name == text, "a name is believed whole or not at all");
  promise(name.size() <= cluster::kMaxNameLength, "a name is as long as is stated");
  const int meanings = !name.empty() + cluster::tellsFailure(text) + cluster::tellsGivingUp(text);
  promise(meanings <= 1, "a message has one meaning");
  std::optional<cluster::FirstEnd> end = cluster::parseFirstEnd(text);
  if (!end) return;
  promise(cluster::parseFirstEnd(cluster::encodeFirstEnd(*end)) == end, "an end is read as it was written");
  promise(end->reader >= 0 && end->reader < end->worldSize && end->rank >= 0 && end->rank < end->worldSize,
          "the ranks of an end are in the world");
  promise(cluster::nameFromMessage(end->name) == end->name, "the name in an end is one that a worker may have");
  for (char c : end->how) promise(c >= ' ' && c < 0x7f, "how it ended holds no control characters");
}

void feed(Bytes input) {
  Choices choices(input);
  test::LaunchEnvironment environment;
  while (choices.any()) {
    size_t index = choices.below(kNames.size());
    const size_t size = choices.below(96);
    std::string value = choices.text(size);
    if (index == kJobKey && size > kMark.size()) value.insert(0, kMark);
    checkMessage(value);
    environment.set(kNames[index], value);
  }
  Result<Launch> launch = Launch::detect();
  launch.ok() ? checkLaunch(*launch) : checkFailure(launch.status());
}

std::vector<std::byte> variables(const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  std::vector<std::byte> bytes;
  for (const auto& [name, value] : values) {
    size_t index = static_cast<size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
    bytes.push_back(static_cast<std::byte>(index));
    bytes.push_back(static_cast<std::byte>(value.size()));
    for (char c : value) bytes.push_back(static_cast<std::byte>(c));
  }
  return bytes;
}

Inputs seeds() {
  return {variables({{"TREADLE_RANK", "1"}, {"TREADLE_WORLD_SIZE", "4"}, {"TREADLE_MASTER", "127.0.0.1:29500"}}),
          variables({{"TREADLE_RANK", "0"}, {"TREADLE_WORLD_SIZE", "1"}, {"TREADLE_MASTER", "[::1]:1"}}),
          variables({{"TREADLE_RANK", "1"}, {"TREADLE_WORLD_SIZE", "2"}, {"TREADLE_MASTER", "file:///tmp/a"}}),
          variables({{"TREADLE_RANK", "1"},
                     {"TREADLE_WORLD_SIZE", "2"},
                     {"TREADLE_SERVERS", "1"},
                     {"TREADLE_MASTER", "node0:1"}}),
          variables({{"TREADLE_RANK", "any"}, {"TREADLE_WORLD_SIZE", "open"}, {"TREADLE_MASTER", "node0:29500"}}),
          variables({{"TORCHELASTIC_RUN_ID", "none"},
                     {"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "node0"},
                     {"MASTER_PORT", "29400"}}),
          variables({{"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", "29400"},
                     {"TREADLE_JOB_KEY", "0123456789abcdef"}}),
          variables({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}, {"PET_MASTER_PORT", "1"}}),
          variables({{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "123"}}),
          variables({{"SLURM_PROCID", "1"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_JOB_ID", "5"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NODELIST", "gpu[003-010,12],login"}}),
          variables({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}),
          variables({{"RANK", "?"}, {"RANK", "!"}}),
          variables({{"RANK", cluster::encodeFirstEnd({1, 4, "127.0.0.1:4000", 2, "t0", "was killed by SIGKILL"})}})};
}

const Fuzzer kLaunch("launch", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::launch_fuzz
