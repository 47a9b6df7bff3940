#include "treadle/core/link/channels.h"

#include "gtest/gtest.h"
#include "treadle/core/base/error.h"

namespace treadle::channels_test {
namespace {

TEST(Channels, areThoseThatAreNamed) {
  Channels some = valueOrThrow(Channels::parse("tcp,lanes"));
  EXPECT_TRUE(some.tcp && some.lanes);
  EXPECT_FALSE(some.unixSockets || some.sharedMemory || some.crossMemory);
  Channels all = valueOrThrow(Channels::parse("unix,tcp,lanes,shm,cma"));
  EXPECT_TRUE(all.tcp && all.lanes && all.unixSockets && all.sharedMemory && all.crossMemory);
}

TEST(Channels, areRefusedWithTheNameThatIsNone) {
  for (const char* text : {"", "tcp,", "TCP", "tcp shm", "rdma"}) {
    Status refused = Channels::parse(text).status();
    EXPECT_EQ(Code::kInvalidArgument, refused.code()) << text;
    EXPECT_NE(std::string::npos, refused.message().find("unix, tcp, lanes, shm and cma"));
  }
  EXPECT_EQ(Code::kInvalidArgument, Channels::parse("shm,lanes").status().code());
}

}  // namespace
}  // namespace treadle::channels_test
