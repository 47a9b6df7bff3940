#include "treadle/core/link/handshake_messages.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "treadle/core/base/error.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link {
namespace {

constexpr size_t kReasonBytes = 4096;

template <size_t N>
std::array<std::byte, N> readArray(wire::Reader& reader) {
  std::array<std::byte, N> array{};
  Bytes bytes = reader.raw(N);
  if (bytes.size() == N) std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

// The version stands first, in every version of the protocol, and nothing after it is read when it is another.
Status readGreeting(wire::Reader& reader, Greeting& greeting) {
  greeting.version = reader.number<uint16_t>();
  if (reader.ok() && greeting.version != kProtocolVersion)
    return failedPrecondition("it speaks version " + std::to_string(greeting.version) +
                              " of Treadle's protocol and this worker version " + std::to_string(kProtocolVersion) +
                              "; use the same release on every machine");
  auto purpose = reader.number<uint8_t>();
  if (purpose < 1 || purpose > static_cast<uint8_t>(Purpose::kSummation)) reader.fail();
  greeting.purpose = static_cast<Purpose>(purpose);
  greeting.number = reader.number<uint64_t>();
  if (greeting.number != 0 && greeting.purpose != Purpose::kSummation) reader.fail();
  greeting.worker.rank = reader.number<int32_t>();
  greeting.worker.name = reader.string(kNameBytes);
  greeting.nonce = readArray<32>(reader);
  return reader.status("a greeting");
}

Status readReject(wire::Reader& reader, Status& reason) {
  auto code = reader.number<uint8_t>();
  std::string text = reader.string(kReasonBytes);
  if (code == 0 || !isCode(code)) reader.fail();
  if (reader.ok()) reason = Status(static_cast<Code>(code), std::move(text));
  return reader.status("a rejection");
}

}  // namespace

wire::FrameLimits handshakeLimits() { return {.payloadBytes = 8192, .bufferBytes = 0, .buffers = 0}; }

bool Credentials::encrypts(const io::Address& address) const {
  return tls != nullptr && !address.isUnix() && (tlsOnLoopback || !address.isLoopback());
}

Status Credentials::checkUse(const io::Address& address) const {
  if (!jobKey.empty() || encrypts(address)) return {};
  return failedPrecondition("links at " + address.toString() + " need a job key (TREADLE_JOB_KEY)");
}

std::optional<io::Address> Credentials::meetingSocket(const io::Address& port) const {
  if (!unixSockets || jobKey.empty() || !port.isLoopback()) return {};
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr size_t kNameDigest = 16;
  const std::string text = port.toString();
  const Proof digest = proofOf(jobKey, "meeting socket", std::as_bytes(std::span(text)), {});
  std::string name = "treadle-meet-";
  for (std::byte byte : std::span(digest).first(kNameDigest)) {
    name += kDigits[std::to_integer<size_t>(byte >> 4)];
    name += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return *io::Address::unixAbstract(name);
}

Nonce randomNonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    raise(internalError("the system gives no random numbers"));
  return nonce;
}

Bytes asBytes(const Proof& proof) { return proof; }

std::vector<std::byte> encodeGreeting(Step step, const Greeting& greeting) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(step));
  writer.number(greeting.version);
  writer.number(static_cast<uint8_t>(greeting.purpose));
  writer.number(greeting.number);
  writer.number(static_cast<int32_t>(greeting.worker.rank));
  writer.string(greeting.worker.name);
  writer.raw(greeting.nonce);
  return writer.take();
}

std::vector<std::byte> encodeStep(Step step, Bytes body) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(step));
  writer.raw(body);
  return writer.take();
}

std::vector<std::byte> encodeReject(const Status& why) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(Step::kReject));
  writer.number(static_cast<uint8_t>(why.code()));
  writer.string(std::string_view(why.message()).substr(0, kReasonBytes));
  return writer.take();
}

std::vector<std::byte> handshakeFrame(Bytes message) {
  return wire::frameFront(wire::FrameKind::kHandshake, 0, message, {});
}

Result<Incoming> parseHandshake(const Frame& frame) {
  if (frame.header.kind != wire::FrameKind::kHandshake) return dataLoss("it sent something else before the handshake");
  if (!frame.buffers.empty()) return dataLoss("it sent a handshake message with buffers");
  wire::Reader reader(frame.payload);
  Incoming incoming;
  auto step = reader.number<uint8_t>();
  if (step < 1 || step > 5) return dataLoss("it sent an unknown handshake message");
  incoming.step = static_cast<Step>(step);
  if (incoming.step == Step::kReject) TREADLE_RETURN_IF_ERROR(readReject(reader, incoming.reason));
  if (incoming.step == Step::kHello || incoming.step == Step::kChallenge) {
    TREADLE_RETURN_IF_ERROR(readGreeting(reader, incoming.greeting));
    incoming.greetingBytes = encodeGreeting(incoming.step, incoming.greeting);
  }
  if (incoming.step == Step::kChallenge || incoming.step == Step::kProof) incoming.proof = readArray<32>(reader);
  TREADLE_RETURN_IF_ERROR(reader.finished("a handshake message"));
  return incoming;
}

// The greetings are hashed as they are written again by this side after parsing, which is byte for byte what
// came: there is one way to write each.
Proof proofOf(const std::string& key, std::string_view role, Bytes hello, Bytes challenge) {
  wire::Writer transcript;
  // With lengths in front, so that no two transcripts can be the same bytes with other boundaries.
  transcript.string("treadle handshake");
  transcript.string(role);
  transcript.raw(hello);
  transcript.raw(challenge);
  Proof proof;
  unsigned size = 0;
  const auto* made = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(transcript.bytes().data()), transcript.size(),
                            reinterpret_cast<unsigned char*>(proof.data()), &size);
  if (made == nullptr || size != proof.size()) raise(internalError("OpenSSL computes no HMAC-SHA256"));
  return proof;
}

std::string proofKey(const Credentials& credentials, const io::Stream& stream, Purpose purpose, uint16_t port) {
  if (stream.tls() != nullptr) return credentials.jobKey + stream.tls()->channelSecret();
  const bool meeting = purpose == Purpose::kRendezvous && !stream.isUnix();
  return meeting ? credentials.jobKey + " at port " + std::to_string(port) : credentials.jobKey;
}

// Constant time, so that how soon it fails does not tell how many bytes were right.
bool sameProof(const Proof& a, const Proof& b) { return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace treadle::link
