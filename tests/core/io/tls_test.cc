#include "treadle/core/io/tls.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>

#include "tests/support/bytes.h"
#include "tests/support/certificates.h"
#include "tests/support/tls_pair.h"

namespace treadle::io::tls_test {
namespace {

using test::patience;

TlsOptions with(const test::CertificateFiles& files, const test::CertificateFiles& authority) {
  TlsOptions options;
  options.certificateFile = files.certificate();
  options.keyFile = files.privateKey();
  options.authorityFile = authority.authority();
  return options;
}

void expectToCarry(Stream& from, Stream& to, size_t size) {
  test::Random random(size);
  std::vector<std::byte> sent = test::randomBytes(random, size), got(size);
  std::thread writer([&] { EXPECT_TRUE(writeAll(from, sent, patience()).ok()); });
  EXPECT_TRUE(readAll(to, got, patience()).ok());
  writer.join();
  EXPECT_EQ(sent, got);
}

TEST(Tls, carriesBytesBothWaysByAKeyAndByCertificates) {
  test::CertificateFiles files;
  for (const TlsOptions& options : {test::tlsByKey("one key"), with(files, files)}) {
    test::TlsPair pair(options, options);
    ASSERT_TRUE(pair.dialed.ok() && pair.accepted.ok()) << pair.dialed.toString() << pair.accepted.toString();
    for (size_t size : {size_t{1}, size_t{16'384}, size_t{16'385}, size_t{3'000'000}}) {
      expectToCarry(pair.a, pair.b, size);
      expectToCarry(pair.b, pair.a, size);
    }
    EXPECT_EQ(32U, pair.a.tls()->channelSecret().size());
    EXPECT_EQ(pair.a.tls()->channelSecret(), pair.b.tls()->channelSecret());
    EXPECT_NE(pair.a.tls()->channelSecret(), test::TlsPair(options, options).a.tls()->channelSecret());
  }
}

// What is written is nowhere on the wire.
TEST(Tls, hidesWhatItCarries) {
  test::TlsPair pair(test::tlsByKey("one key"), test::tlsByKey("one key"));
  const std::string secret = "nobody else is to read this sentence";
  ASSERT_TRUE(writeAll(pair.a, std::as_bytes(std::span(secret)), patience()).ok());
  ASSERT_TRUE(waitFor(pair.b.fd(), POLLIN, patience()));
  std::string wire(1000, '\0');
  ssize_t got = ::recv(pair.b.fd(), wire.data(), wire.size(), MSG_PEEK);
  ASSERT_GT(got, static_cast<ssize_t>(secret.size()));
  EXPECT_EQ(std::string::npos, wire.find("nobody"));
}

TEST(Tls, refusesAnotherKeyOnBothSides) {
  test::TlsPair pair(test::tlsByKey("one key"), test::tlsByKey("another key"));
  EXPECT_EQ(Code::kUnauthenticated, pair.accepted.code()) << pair.accepted.toString();
  EXPECT_EQ(Code::kUnauthenticated, pair.dialed.code()) << pair.dialed.toString();
}

// With TLS 1.3 the dialer is done before the acceptor has seen its certificate: it hears of it when it reads.
TEST(Tls, refusesCertificatesOfAnotherAuthority) {
  test::CertificateFiles ours, theirs;
  test::TlsPair accepted(with(theirs, ours), with(ours, ours));
  EXPECT_EQ(Code::kUnauthenticated, accepted.accepted.code()) << accepted.accepted.toString();
  ASSERT_TRUE(accepted.dialed.ok()) << accepted.dialed.toString();
  std::byte byte;
  Status heard = readAll(accepted.a, std::span(&byte, 1), patience());
  EXPECT_EQ(Code::kUnauthenticated, heard.code()) << heard.toString();
  test::TlsPair dialed(with(ours, ours), with(theirs, ours));
  EXPECT_EQ(Code::kUnauthenticated, dialed.dialed.code()) << dialed.dialed.toString();
}

TEST(Tls, refusesAKeyWhereCertificatesAreAskedForAndTheReverse) {
  test::CertificateFiles files;
  test::TlsPair key(test::tlsByKey("one key"), with(files, files));
  EXPECT_NE(Code::kOk, key.dialed.code());
  test::TlsPair certificate(with(files, files), test::tlsByKey("one key"));
  EXPECT_NE(Code::kOk, certificate.accepted.code());
  EXPECT_NE(Code::kOk, certificate.dialed.code());
}

TEST(Tls, saysWhoDoesNotSpeakIt) {
  test::TcpPair ends;
  Stream acceptor;
  std::string_view plain = "TDL1 and whatever follows it";
  ASSERT_TRUE(io::writeAll(ends.dialer.get(), std::as_bytes(std::span(plain)), patience()).ok());
  Status status =
      test::TlsPair::shake(std::move(ends.acceptor), test::tlsByKey("one key"), Tls::Role::kAcceptor, acceptor);
  EXPECT_EQ(Code::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("does not speak TLS"));
}

TEST(Tls, saysWhatIsWrongWithAFile) {
  test::CertificateFiles files, others;
  TlsOptions options = with(files, files);
  options.certificateFile = "/nowhere/worker.pem";
  Status status = TlsContext::make(options).status();
  EXPECT_EQ(Code::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("/nowhere/worker.pem")) << status.message();
  options = with(files, files);
  options.keyFile = others.privateKey();  // of another certificate
  EXPECT_NE(std::string::npos, TlsContext::make(options).status().message().find(others.privateKey()));
  options.keyFile.clear();
  EXPECT_EQ(Code::kInvalidArgument, TlsContext::make(options).status().code());
  EXPECT_EQ(Code::kInvalidArgument, TlsContext::make(TlsOptions()).status().code());
}

// OpenSSL would ask whoever sits at the terminal, and wait.
TEST(Tls, takesNoPrivateKeyWithAPassPhrase) {
  test::CertificateFiles files;
  {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(files.privateKey().c_str(), "w"), &std::fclose);
    std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), &::EVP_PKEY_free);
    ASSERT_EQ(1, ::PEM_write_PrivateKey(file.get(), key.get(), ::EVP_aes_128_cbc(),
                                        reinterpret_cast<const unsigned char*>("secret"), 6, nullptr, nullptr));
  }
  const Status refused = TlsContext::make(with(files, files)).status();
  EXPECT_EQ(Code::kInvalidArgument, refused.code());
  EXPECT_NE(std::string::npos, refused.message().find("pass phrase")) << refused.message();
}

TEST(Tls, changesItsKeysWithoutAWord) {
  TlsOptions options = test::tlsByKey("one key");
  options.rekeyBytes = 50'000;
  test::TlsPair pair(options, options);
  ASSERT_TRUE(pair.dialed.ok() && pair.accepted.ok());
  expectToCarry(pair.a, pair.b, 2'000'000);
  expectToCarry(pair.b, pair.a, 2'000'000);
}

// A socket that takes little at a time: nothing is lost, repeated or out of order, by seed.
TEST(Tls, keepsWhatTheSocketDoesNotTake) {
  test::forSeeds(20, [](test::Random& random) {
    test::TlsPair pair(test::tlsByKey("one key"), test::tlsByKey("one key"));
    setBufferSizes(pair.a.fd(), 16 << 10);  // of the writer: a small window would bring TCP's timers in
    const std::vector<std::byte> sent = test::randomBytes(random, 300'000);
    std::vector<std::byte> got;
    size_t written = 0;
    while (got.size() < sent.size()) {
      std::vector<iovec> parts;
      for (size_t at = written; at < sent.size() && parts.size() < 5;) {
        size_t size = std::min<size_t>(sent.size() - at, 1 + test::pick(random, test::pick(random, 2) ? 100 : 40'000));
        parts.push_back({const_cast<std::byte*>(sent.data()) + at, size});
        at += size;
      }
      ssize_t taken = pair.a.write(parts, MSG_DONTWAIT);
      if (taken > 0) written += static_cast<size_t>(taken);
      ASSERT_TRUE(taken >= 0 || errno == EAGAIN);
      std::vector<std::byte> room(1 + test::pick(random, 50'000));
      ssize_t came = pair.b.read(room, MSG_DONTWAIT);
      ASSERT_TRUE(came > 0 || (came < 0 && errno == EAGAIN));
      if (came > 0) got.insert(got.end(), room.begin(), room.begin() + came);
    }
    ASSERT_TRUE(pair.a.flushed());
    ASSERT_EQ(sent, got);
  });
}

// One thread reads while another writes, on both ends: also for the thread sanitizer.
TEST(Tls, isReadAndWrittenAtOnce) {
  TlsOptions options = test::tlsByKey("one key");
  options.rekeyBytes = 70'000;
  test::TlsPair pair(options, options);
  std::thread forth([&] { expectToCarry(pair.a, pair.b, 3'000'000); });
  expectToCarry(pair.b, pair.a, 3'000'000);
  forth.join();
}

TEST(Tls, thatIsCutEnds) {
  for (bool politely : {true, false}) {
    test::TlsPair pair(test::tlsByKey("one key"), test::tlsByKey("one key"));
    if (politely) {
      pair.a.closeWrite();
    } else {
      (void)::shutdown(pair.a.fd(), SHUT_WR);
    }
    std::byte byte;
    EXPECT_EQ(Code::kPeerLost, readAll(pair.b, std::span(&byte, 1), patience()).code());
  }
}

TEST(Tls, cutWithinItsHandshakeIsAPeerThatIsGone) {
  test::TcpPair ends;
  ends.dialer.reset();
  Stream acceptor;
  EXPECT_EQ(
      Code::kPeerLost,
      test::TlsPair::shake(std::move(ends.acceptor), test::tlsByKey("one key"), Tls::Role::kAcceptor, acceptor).code());
}

}  // namespace
}  // namespace treadle::io::tls_test
