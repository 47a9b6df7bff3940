#include "treadle/core/cluster/launch.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>

#include "gtest/gtest.h"
#include "tests/support/launch_environment.h"
#include "treadle/core/io/fd.h"

namespace treadle::cluster::launch_test {
namespace {

using Environment = treadle::test::LaunchEnvironment;
using Variables = Environment::Variables;

const Variables kPlain = {
    {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node-1.example"}, {"MASTER_PORT", "29500"}};
const Variables kOwn = {{"TREADLE_RANK", "1"},
                        {"TREADLE_WORLD_SIZE", "3"},
                        {"TREADLE_MASTER", "127.0.0.1:4000"},
                        {"TREADLE_JOB_KEY", "0123456789abcdef"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Status failureOf(const Variables& variables) {
  Environment environment(variables);
  return Launch::detect().status();
}

TEST(Launch, readsPlainVariables) {
  Environment environment(kPlain);
  auto launch = Launch::detect();
  ASSERT_TRUE(launch.ok()) << launch.status().toString();
  EXPECT_EQ(2, launch->rank);
  EXPECT_EQ(4, launch->worldSize);
  EXPECT_EQ("node-1.example", launch->masterAddress);
  EXPECT_EQ(29500, launch->masterPort);
  EXPECT_EQ("", launch->jobKey);
}

TEST(Launch, readsTreadleRunsVariables) {
  Environment environment(kOwn);
  auto launch = Launch::detect();
  ASSERT_TRUE(launch.ok()) << launch.status().toString();
  EXPECT_EQ(1, launch->rank);
  EXPECT_EQ(3, launch->worldSize);
  EXPECT_EQ("127.0.0.1", launch->masterAddress);
  EXPECT_EQ(4000, launch->masterPort);
  EXPECT_EQ("0123456789abcdef", launch->jobKey);
}

TEST(Launch, prefersItsOwnVariables) {
  Variables both = kPlain;
  both.insert(kOwn.begin(), kOwn.end());
  Environment environment(both);
  EXPECT_EQ(1, Launch::detect()->rank);
}

TEST(Launch, ReadsHowManyRanksAreServers) {
  for (const auto& [rank, text, servers, isServer] :
       {std::tuple<const char*, const char*, int, bool>{"0", "2", 2, false},
        {"1", "2", 2, true},
        {"1", "1", 1, false},
        {"2", "1", 1, true},
        {"2", "0", 0, false},
        {"2", "", 0, false}}) {
    Environment environment(with(with(kOwn, "TREADLE_RANK", rank), "TREADLE_SERVERS", text));
    auto launch = Launch::detect();
    ASSERT_TRUE(launch.ok()) << launch.status().toString();
    EXPECT_EQ(3, launch->worldSize);
    EXPECT_EQ(servers, launch->servers);
    EXPECT_EQ(3 - servers, launch->workers());
    EXPECT_EQ(isServer, launch->isServer());
  }
  for (const char* wrong : {"3", "4", "-1", "two", "1 "}) {
    const std::string message = failureOf(with(kOwn, "TREADLE_SERVERS", wrong)).message();
    EXPECT_NE(std::string::npos, message.find("TREADLE_SERVERS is '" + std::string(wrong) + "'")) << message;
  }
}

// What each launcher sets, as seen on real ones, and what is to come of it.
struct Case {
  const char* what;
  Variables variables;
  int rank, worldSize;
  const char* masterAddress;
  const char* job;  // null: masterPort is the job's own
};

const Variables kTorchrun = {{"TORCHELASTIC_RUN_ID", "c0ffee"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "worker-7.cluster"},
                             {"MASTER_PORT", "45123"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1234@1"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NODELIST", "gpu[003-006,9],login"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"}};
const Variables kPmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kElastic = {{"PET_NODE_RANK", "1"},
                            {"PET_NNODES", "3"},
                            {"PET_NPROC_PER_NODE", "1"},
                            {"PET_MASTER_ADDR", "job-master-0"},
                            {"PET_MASTER_PORT", "23456"}};

Variables together(Variables first, const Variables& second) {
  first.insert(second.begin(), second.end());
  return first;
}

TEST(Launch, readsOtherLaunchersVariables) {
  const std::vector<Case> cases = {
      {"torchrun, one host", kTorchrun, 1, 2, "127.0.0.1", "torchrun c0ffee 0 45123"},
      {"torchrun, two hosts", with(kTorchrun, "LOCAL_WORLD_SIZE", "1"), 1, 2, "worker-7.cluster",
       "torchrun c0ffee 0 45123"},
      {"torchrun after a restart", with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "2"), 1, 2, "127.0.0.1",
       "torchrun c0ffee 2 45123"},
      {"mpirun of Open MPI", kOpenMpi, 3, 4, "127.0.0.1", "ompi 1234@1  "},
      {"the same with a host by hand", with(kOpenMpi, "MASTER_ADDR", "node1"), 3, 4, "127.0.0.1", "ompi 1234@1  "},
      {"over hosts", with(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), "MASTER_ADDR", "node1"), 3, 4, "node1",
       "ompi 1234@1  "},
      {"srun over hosts", kSlurm, 5, 8, "gpu003", "slurm 77 0"},
      {"srun on one host", with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "8"), 5, 8, "127.0.0.1", "slurm 77 0"},
      {"srun with a host by hand", with(kSlurm, "MASTER_ADDR", "10.0.0.1"), 5, 8, "10.0.0.1", "slurm 77 0"},
      {"mpiexec of MPICH", kPmi, 0, 2, "127.0.0.1", "pmi  "},
      {"Kubeflow", kElastic, 1, 3, "job-master-0", nullptr},
      {"mpirun within a Slurm job", together(kOpenMpi, kSlurm), 3, 4, "127.0.0.1", "ompi 1234@1  "},
      {"srun with PMI", together(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}), 5, 8, "gpu003", "slurm 77 0"},
      {"mpiexec of MPICH within a Slurm job", together(kPmi, kSlurm), 0, 2, "127.0.0.1", "pmi  "},
      {"the same over hosts", together(with(kPmi, "MPI_LOCALNRANKS", "1"), kSlurm), 0, 2, "gpu003", "pmi  "},
      {"torchrun within a Slurm job", together(kTorchrun, kSlurm), 1, 2, "127.0.0.1", "torchrun c0ffee 0 45123"},
      {"variables by hand within a Slurm job", together(kPlain, kSlurm), 2, 4, "node-1.example", nullptr},
      {"treadle run within all of them", together(kOwn, together(kTorchrun, kSlurm)), 1, 3, "127.0.0.1", nullptr},
  };
  for (const Case& one : cases) {
    Environment environment(one.variables);
    auto launch = Launch::detect();
    ASSERT_TRUE(launch.ok()) << one.what << ": " << launch.status().toString();
    EXPECT_EQ(one.rank, launch->rank) << one.what;
    EXPECT_EQ(one.worldSize, launch->worldSize) << one.what;
    EXPECT_EQ(one.masterAddress, launch->masterAddress) << one.what;
    EXPECT_EQ(one.job == nullptr ? "" : one.job, launch->job) << one.what;
  }
}

TEST(Launch, saysWhatOtherLaunchersDidNotTell) {
  const std::vector<std::tuple<Variables, Code, const char*>> cases = {
      {without(kTorchrun, "MASTER_PORT"), Code::kFailedPrecondition, "MASTER_PORT is missing"},
      {without(kTorchrun, "RANK"), Code::kFailedPrecondition, "RANK is missing"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), Code::kFailedPrecondition, "OMPI_COMM_WORLD_SIZE is missing"},
      {with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), Code::kFailedPrecondition, "set MASTER_ADDR"},
      {with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4"), Code::kInvalidArgument, "OMPI_COMM_WORLD_RANK is 4"},
      {with(kSlurm, "SLURM_STEP_NODELIST", "gpu[3"), Code::kFailedPrecondition, "set MASTER_ADDR"},
      {without(kSlurm, "SLURM_NTASKS"), Code::kFailedPrecondition, "SLURM_NTASKS is missing"},
      {without(kSlurm, "SLURM_STEP_ID"), Code::kFailedPrecondition, "not part of a job"},  // the script of a batch job
      {with(kPmi, "MPI_LOCALNRANKS", "1"), Code::kFailedPrecondition, "set MASTER_ADDR"},
      {with(kElastic, "PET_NPROC_PER_NODE", "8"), Code::kInvalidArgument, "torchrun"},
      {without(kElastic, "PET_MASTER_ADDR"), Code::kFailedPrecondition, "PET_MASTER_ADDR is missing"},
      {{{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}, Code::kFailedPrecondition, "not part of a job"},
  };
  for (const auto& [variables, code, text] : cases) {
    Status status = failureOf(variables);
    EXPECT_EQ(code, status.code()) << text << ": " << status.toString();
    EXPECT_NE(std::string::npos, status.message().find(text)) << status.message();
  }
}

TEST(Launch, derivesPortsForAJobThatWasGivenNone) {
  Launch own{0, 1, "127.0.0.1", 29500, ""};
  EXPECT_EQ(std::vector<uint16_t>{29500}, own.meetingPorts());
  EXPECT_EQ("29500", own.meetingName());
  Launch first = own, other = own;
  first.job = "torchrun c0ffee 0 29500";
  other.job = "torchrun c0ffee 1 29500";
  for (const Launch* launch : {&first, &other}) {
    ASSERT_EQ(8U, launch->meetingPorts().size());
    for (uint16_t port : launch->meetingPorts()) EXPECT_TRUE(port >= 10'000 && port < 32'768) << port;
  }
  EXPECT_NE(first.meetingPorts(), other.meetingPorts());
  EXPECT_EQ(first.meetingPorts(), Launch(first).meetingPorts());
  EXPECT_NE(first.meetingName(), other.meetingName());
  EXPECT_LE(first.meetingName().size(), 16U);
}

// Two jobs of a user who has one key in a start-up file.
TEST(Launch, makesTheKeyTheJobsOwn) {
  Launch plain{0, 1, "127.0.0.1", 29500, "0123456789abcdef"}, first = plain, other = plain;
  EXPECT_EQ(plain.jobKey, plain.secret());
  first.job = "slurm 77 0";
  other.job = "slurm 77 1";
  EXPECT_NE(first.secret(), other.secret());
  first.jobKey.clear();
  EXPECT_EQ("", first.secret());
}

// A secret that was written to a file and comes back as a variable has the end of a line.
TEST(Launch, takesNoLineEndOfAKey) {
  Environment environment(with(kOwn, "TREADLE_JOB_KEY", "a key that a launcher made\n"));
  EXPECT_EQ("a key that a launcher made", Launch::detect()->jobKey);
}

TEST(Launch, takesAJobKeyBesidesPlainVariables) {
  Environment environment(with(kPlain, "TREADLE_JOB_KEY", "a key of one's own"));
  EXPECT_EQ("a key of one's own", Launch::detect()->jobKey);
}

TEST(Launch, readsIpv6Addresses) {
  Environment environment(with(kOwn, "TREADLE_MASTER", "[fe80::1%eth0]:4000"));
  EXPECT_EQ("fe80::1%eth0", Launch::detect()->masterAddress);
}

// The descriptor comes before the file and this before the variable; each may be read again.
TEST(Launch, takesTheKeyFromADescriptorOrAFile) {
  io::Fd file(::memfd_create("key", MFD_CLOEXEC));
  const std::string key = "a key that a launcher made";
  ASSERT_EQ(static_cast<ssize_t>(key.size()), ::write(file.get(), key.data(), key.size()));
  struct stat info{};
  ASSERT_EQ(0, ::fstat(file.get(), &info));
  const std::string number = std::to_string(file.get()), inode = std::to_string(info.st_ino);
  const std::string path = "/proc/self/fd/" + number;
  for (const std::string& text : {number, number + ":" + inode}) {
    Environment environment(with(with(kOwn, "TREADLE_JOB_KEY_FD", text), "TREADLE_JOB_KEY_FILE", "/nowhere"));
    EXPECT_EQ(key, Launch::detect()->jobKey);
    EXPECT_EQ(key, Launch::detect()->jobKey);
  }
  ASSERT_EQ(2, ::write(file.get(), "\r\n", 2));
  Environment environment(with(kOwn, "TREADLE_JOB_KEY_FILE", path));
  EXPECT_EQ(key, Launch::detect()->jobKey);
}

TEST(Launch, saysWhyAKeyCannotBeRead) {
  for (const char* text : {"7x", "-1", ":", "99999", "0:1"}) {
    Status status = failureOf(with(kOwn, "TREADLE_JOB_KEY_FD", text));
    EXPECT_EQ(Code::kInvalidArgument, status.code()) << text;
    EXPECT_NE(std::string::npos, status.message().find("TREADLE_JOB_KEY_FD")) << status.message();
  }
  for (const char* path : {"/nowhere/key", "/dev/null", "/"}) {
    Status status = failureOf(with(kOwn, "TREADLE_JOB_KEY_FILE", path));
    EXPECT_EQ(Code::kInvalidArgument, status.code()) << path;
    EXPECT_NE(std::string::npos, status.message().find("TREADLE_JOB_KEY_FILE")) << status.message();
  }
}

TEST(Launch, saysHowToStartWhenNothingIsSet) {
  Status status = failureOf({});
  EXPECT_EQ(Code::kFailedPrecondition, status.code());
  EXPECT_EQ(
      "this program is not part of a job: no launcher's environment variables are set; start the program through "
      "`treadle run -n 4 -- program`, torchrun, srun or mpirun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
      status.message());
}

TEST(Launch, namesTheMissingVariable) {
  for (const auto& complete : {kPlain, without(kOwn, "TREADLE_JOB_KEY")})
    for (const auto& [name, value] : complete) {
      Status status = failureOf(without(complete, name));
      EXPECT_EQ(Code::kFailedPrecondition, status.code());
      EXPECT_NE(std::string::npos, status.message().find("variable " + name + " is missing")) << status.message();
      EXPECT_NE(std::string::npos, status.message().find("treadle run")) << status.message();
      EXPECT_EQ(Code::kFailedPrecondition, failureOf(with(complete, name, "")).code()) << "empty is missing";
    }
}

TEST(Launch, namesTheWrongVariableAndItsValue) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"RANK", "two"},        {"RANK", "-1"},       {"RANK", "1.5"},          {"RANK", " 1"},
      {"RANK", "+1"},         {"RANK", "4"},        {"RANK", "99999999999"},  {"WORLD_SIZE", "0"},
      {"WORLD_SIZE", "-4"},   {"WORLD_SIZE", "4x"}, {"WORLD_SIZE", "65537"},  {"MASTER_ADDR", "two words"},
      {"MASTER_ADDR", "a;b"}, {"MASTER_PORT", "0"}, {"MASTER_PORT", "65536"}, {"MASTER_PORT", "http"},
  };
  for (const auto& [name, value] : cases) {
    Status status = failureOf(with(kPlain, name, value));
    EXPECT_EQ(Code::kInvalidArgument, status.code()) << name << "=" << value;
    EXPECT_NE(std::string::npos, status.message().find(name + " is ")) << status.message();
    EXPECT_NE(std::string::npos, status.message().find(value)) << status.message();
  }
  for (const char* master :
       {"127.0.0.1", ":4000", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "::1:4000", "[]:1", "a b:1"}) {
    Status status = failureOf(with(kOwn, "TREADLE_MASTER", master));
    EXPECT_EQ(Code::kInvalidArgument, status.code()) << master;
    EXPECT_NE(std::string::npos, status.message().find("TREADLE_MASTER is '" + std::string(master)))
        << status.message();
  }
}

TEST(Launch, quotesNoMoreOfAValueThanAMessageBears) {
  std::string value = std::string(5000, 'x') + "\x1b[2J";
  std::string message = failureOf(with(kPlain, "RANK", value)).message();
  EXPECT_LT(message.size(), 400u);
  message = failureOf(with(kPlain, "RANK", "\x1b[2J\n")).message();
  EXPECT_EQ(std::string::npos, message.find('\x1b'));
  EXPECT_EQ(std::string::npos, message.find('\n'));
}

TEST(Launch, keepsTheKeyOutOfMessages) {
  std::string message = failureOf(with(kOwn, "TREADLE_JOB_KEY", "tooshort")).message();
  EXPECT_NE(std::string::npos, message.find("TREADLE_JOB_KEY")) << message;
  EXPECT_EQ(std::string::npos, message.find("tooshort")) << message;
  EXPECT_EQ(Code::kInvalidArgument, failureOf(with(kOwn, "TREADLE_JOB_KEY", std::string(1025, 'k'))).code());
}

TEST(Launch, validatesWhatAProgramFillsIn) {
  Launch good{0, 1, "127.0.0.1", 29500, ""};
  EXPECT_TRUE(good.validate().ok());
  for (auto spoil : std::vector<void (*)(Launch&)>{
           [](Launch& l) { l.rank = 1; }, [](Launch& l) { l.rank = -1; }, [](Launch& l) { l.worldSize = 0; },
           [](Launch& l) { l.worldSize = kMaxWorldSize + 1; }, [](Launch& l) { l.masterAddress = ""; },
           [](Launch& l) { l.masterAddress = "a b"; }, [](Launch& l) { l.masterPort = 0; },
           [](Launch& l) { l.jobKey = "short"; }}) {
    Launch bad = good;
    spoil(bad);
    EXPECT_EQ(Code::kInvalidArgument, bad.validate().code());
  }
  Launch served{0, 3, "127.0.0.1", 29500, ""};
  for (const auto& [servers, isPossible] : {std::pair<int, bool>{0, true}, {2, true}, {3, false}, {-1, false}}) {
    served.servers = servers;
    EXPECT_EQ(isPossible, served.validate().ok()) << servers;
  }
  Launch open{kAnyRank, kOpenWorld, "127.0.0.1", 29500, ""};
  EXPECT_TRUE(open.validate().ok());
  open.servers = 1;
  EXPECT_EQ(Code::kInvalidArgument, open.validate().code());
  open.servers = 0;
  open.rank = 1;  // ranks of open jobs are given out
  EXPECT_EQ(Code::kInvalidArgument, open.validate().code());
  Launch file{0, 2, "", 0, ""};
  file.meetingFile = "/tmp/meeting";
  EXPECT_TRUE(file.validate().ok());
  file.meetingFile = "meeting";
  EXPECT_EQ(Code::kInvalidArgument, file.validate().code());
}

}  // namespace
}  // namespace treadle::cluster::launch_test
