#include "treadle/core/io/address.h"

#include "gtest/gtest.h"
#include "treadle/core/io/socket.h"

namespace treadle::io::address_test {
namespace {

TEST(Address, readsWhatItWrites) {
  for (std::string text : {"tcp://127.0.0.1:4000", "tcp://0.0.0.0:0", "tcp://10.1.2.3:65535", "tcp://[::1]:80",
                           "unix:name", "unix:with:colons and spaces"}) {
    Result<Address> address = Address::parse(text);
    ASSERT_TRUE(address.ok()) << address.status().toString();
    EXPECT_EQ(text, address->toString());
  }
}

TEST(Address, tellsWhatItIs) {
  EXPECT_TRUE(Address::parse("tcp://127.8.9.10:1")->isLoopback());
  EXPECT_TRUE(Address::parse("tcp://[::1]:1")->isLoopback());
  EXPECT_FALSE(Address::parse("tcp://128.0.0.1:1")->isLoopback());
  EXPECT_FALSE(Address::parse("unix:x")->isLoopback());
  EXPECT_TRUE(Address::parse("tcp://0.0.0.0:1")->isAny());
  EXPECT_TRUE(Address::parse("tcp://[::]:1")->isAny());
  EXPECT_FALSE(Address::parse("tcp://127.0.0.1:1")->isAny());
  EXPECT_FALSE(Address::parse("unix:x")->isAny());
  EXPECT_TRUE(Address::parse("unix:x")->isUnix());
  EXPECT_EQ(77, Address::parse("tcp://127.0.0.1:77")->port());
  EXPECT_EQ(0, Address::parse("unix:x")->port());
}

TEST(Address, tellsWhoHasItWithManyOthers) {
  const auto network = [](const char* text) { return Address::parse(text)->network(); };
  EXPECT_EQ("10.0.0.7", network("tcp://10.0.0.7:1"));
  EXPECT_EQ(network("tcp://[2001:db8:1:2::7]:1"), network("tcp://[2001:db8:1:2:ffff::]:9"));
  EXPECT_NE(network("tcp://[2001:db8:1:2::7]:1"), network("tcp://[2001:db8:1:3::7]:1"));
  EXPECT_NE(network("tcp://[::ffff:10.0.0.7]:1"), network("tcp://[::ffff:10.0.0.8]:1"));
}

TEST(Address, findsItsOwnOnTheRouteToAnother) {
  for (const char* text : {"tcp://127.0.0.1:4000", "tcp://127.0.0.1:0", "tcp://[::1]:4000"}) {
    const Address target = *Address::parse(text);
    if (!listenOn(target.withPort(0)).ok()) continue;  // this host has no IPv6
    const Result<Address> own = Address::towards(target);
    ASSERT_TRUE(own.ok()) << own.status().toString();
    EXPECT_EQ(target.withPort(0).toString(), own->toString());
  }
  const Result<Address> none = Address::towards(*Address::parse("tcp://255.255.255.255:4000"));
  EXPECT_EQ(Code::kFailedPrecondition, none.status().code());
  EXPECT_NE(std::string::npos, none.status().message().find("no route to 255.255.255.255")) << none.status().toString();
  EXPECT_EQ(Code::kInvalidArgument, Address::towards(*Address::parse("unix:a")).status().code());
}

TEST(Address, refusesWhatIsNoneAndQuotesIt) {
  for (std::string text :
       {"", "127.0.0.1:80", "http://127.0.0.1:80", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1", "tcp://127.0.0.1:8x", "tcp://127.0.0.1:+8", "tcp:", "unix:"}) {
    Result<Address> address = Address::parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(Code::kInvalidArgument, address.status().code()) << text;
    if (text != "unix:") {
      EXPECT_NE(std::string::npos, address.status().message().find("'" + text + "'")) << address.status().message();
    }
  }
}

TEST(Address, namesAHostThatIsNotKnown) {
  for (Status status : {Address::tcp("no-such-host.invalid", 80).status(),
                        // Not even asked for: a peer's words must not make us wait for a name server.
                        Address::parse("tcp://localhost:80").status()}) {
    EXPECT_EQ(Code::kNotFound, status.code());
    EXPECT_NE(std::string::npos, status.message().find("host '")) << status.message();
  }
}

TEST(Address, takesUnixNamesUpTo107Bytes) {
  EXPECT_TRUE(Address::unixAbstract(std::string(107, 'x')).ok());
  EXPECT_EQ(std::string(107, 'x'), Address::unixAbstract(std::string(107, 'x'))->toString().substr(5));
  EXPECT_EQ(Code::kInvalidArgument, Address::unixAbstract(std::string(108, 'x')).status().code());
}

TEST(Address, ofASocketHasThePortThatTheKernelChose) {
  Result<Fd> fd = listenOn(*Address::parse("tcp://127.0.0.1:0"));
  ASSERT_TRUE(fd.ok());
  EXPECT_GT(Address::ofSocket(fd->get())->port(), 0);
  EXPECT_EQ(Code::kFailedPrecondition, Address::ofSocket(-1).status().code());
}

}  // namespace
}  // namespace treadle::io::address_test
