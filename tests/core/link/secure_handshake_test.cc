// The handshake through TLS: who comes in, and what those hear who do not.

#include "tests/core/link/raw_peer.h"
#include "tests/support/certificates.h"
#include "tests/support/reactor_thread.h"

namespace treadle::link::secure_handshake_test {
namespace {

Credentials withTls(Credentials credentials, io::TlsOptions options = {}) {
  if (!options.hasCertificates()) options.key = credentials.jobKey;
  credentials.tls = valueOrThrow(io::TlsContext::make(std::move(options)));
  credentials.tlsOnLoopback = true;
  return credentials;
}

io::TlsOptions certificatesOf(const test::CertificateFiles& files) {
  io::TlsOptions options;
  options.certificateFile = files.certificate();
  options.keyFile = files.privateKey();
  options.authorityFile = files.authority();
  return options;
}

// An acceptor that says "come in" to whom it welcomes.
class Door {
 public:
  explicit Door(Credentials credentials) {
    Acceptor::Host host;
    host.check = [](const Hello&) { return Status(); };
    host.accept = [this](io::Stream stream, Hello hello) {
      EXPECT_TRUE(io::writeAll(stream, std::as_bytes(std::span(std::string_view("come in"))), patience()).ok());
      EXPECT_EQ((WorkerInfo{"guest", 1}), hello.worker);
      {
        MutexLock lock(mutex_);
        guests_.push_back(std::move(stream));
      }
      welcomed.add();
    };
    acceptor_ =
        valueOrThrow(Acceptor::start(*reactor_, valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0"))),
                                     std::move(credentials), std::move(host)));
  }
  ~Door() {
    acceptor_.reset();
    reactor_.stop();
  }
  const io::Address& address() const { return acceptor_->address(); }

  test::Counter welcomed;

 private:
  Mutex mutex_;
  std::vector<io::Stream> guests_;
  test::ReactorThread reactor_;
  std::unique_ptr<Acceptor> acceptor_;
};

void expectToComeIn(Door& door, const Credentials& guest) {
  Result<Dialed> dialed = dial(door.address(), guest, patience());
  ASSERT_TRUE(dialed.ok()) << dialed.status().toString();
  EXPECT_EQ((WorkerInfo{"door", 0}), dialed->peer);
  std::string heard(7, ' ');
  ASSERT_TRUE(io::readAll(dialed->stream, std::as_writable_bytes(std::span(heard)), patience()).ok());
  EXPECT_EQ("come in", heard);
  EXPECT_NE(nullptr, dialed->stream.tls());
}

Status refusal(const Door& door, const Credentials& guest) { return dial(door.address(), guest, patience()).status(); }

TEST(SecureHandshake, letsInWhoHasTheKeyAndNobodyElse) {
  Door door(withTls(credentialsOf("door", 0)));
  expectToComeIn(door, withTls(credentialsOf("guest", 1)));
  Status other = refusal(door, withTls(credentialsOf("guest", 1, "another key of somebody")));
  EXPECT_EQ(Code::kUnauthenticated, other.code()) << other.toString();
  expectToComeIn(door, withTls(credentialsOf("guest", 1)));
  door.welcomed.waitFor(2);
}

TEST(SecureHandshake, letsInWhoHasACertificateWithAndWithoutAKey) {
  test::CertificateFiles files, others;
  for (const char* key : {"", "the key of this job"}) {
    Door door(withTls(credentialsOf("door", 0, key), certificatesOf(files)));
    expectToComeIn(door, withTls(credentialsOf("guest", 1, key), certificatesOf(files)));
    EXPECT_EQ(Code::kUnauthenticated,
              refusal(door, withTls(credentialsOf("guest", 1, key), certificatesOf(others))).code());
  }
}

// A certificate of the authority is not enough where there is a key besides.
TEST(SecureHandshake, asksForTheKeyBesidesTheCertificate) {
  test::CertificateFiles files;
  Door door(withTls(credentialsOf("door", 0), certificatesOf(files)));
  Status other = refusal(door, withTls(credentialsOf("guest", 1, "another key of somebody"), certificatesOf(files)));
  EXPECT_EQ(Code::kUnauthenticated, other.code()) << other.toString();
}

TEST(SecureHandshake, tellsWhoSpeaksInClearThatItIsTls) {
  Door door(withTls(credentialsOf("door", 0)));
  Status status = refusal(door, credentialsOf("guest", 1));
  EXPECT_EQ(Code::kFailedPrecondition, status.code()) << status.toString();
  EXPECT_NE(std::string::npos, status.message().find("TLS")) << status.message();
}

TEST(SecureHandshake, tellsWhoSpeaksTlsThatItIsInClear) {
  Door door(credentialsOf("door", 0));
  Status status = refusal(door, withTls(credentialsOf("guest", 1)));
  EXPECT_EQ(Code::kFailedPrecondition, status.code()) << status.toString();
  EXPECT_NE(std::string::npos, status.message().find("TLS")) << status.message();
}

TEST(SecureHandshake, isNotInClearWithoutAKey) {
  Credentials keyless = credentialsOf("guest", 1, "");
  EXPECT_EQ(Code::kFailedPrecondition,
            dial(*io::Address::parse("tcp://127.0.0.1:1"), keyless, patience()).status().code());
}

// What it is by address: never for UNIX sockets, always beyond the loopback, on it if the job says so.
TEST(SecureHandshake, isThereBeyondTheLoopback) {
  Credentials credentials = withTls(credentialsOf("door", 0));
  const auto encrypts = [&](const char* address) { return credentials.encrypts(*io::Address::parse(address)); };
  EXPECT_TRUE(encrypts("tcp://127.0.0.1:1"));
  credentials.tlsOnLoopback = false;
  EXPECT_FALSE(encrypts("tcp://127.0.0.1:1"));
  EXPECT_FALSE(encrypts("tcp://[::1]:1"));
  EXPECT_FALSE(encrypts("unix:somewhere"));
  EXPECT_TRUE(encrypts("tcp://10.0.0.7:1"));
  credentials.tls = nullptr;
  EXPECT_FALSE(encrypts("tcp://10.0.0.7:1"));
}

TEST(SecureHandshake, survivesStrangersOfAllKinds) {
  Door door(withTls(credentialsOf("door", 0)));
  for (int i = 0; i < 200; ++i) {
    RawPeer stranger(door.address());
    std::string bytes = i % 3 == 0 ? "\x16\x03\x01\x02" : i % 3 == 1 ? "TDL1 and no more" : std::string(3000, 'x');
    stranger.write(std::as_bytes(std::span(bytes)));
  }
  expectToComeIn(door, withTls(credentialsOf("guest", 1)));
}

}  // namespace
}  // namespace treadle::link::secure_handshake_test
