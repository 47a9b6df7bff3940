// The messages of the handshake (link/handshake_messages.h): the first byte is the kind of the frame they come in.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/link/handshake_messages.h"

namespace treadle::fuzz::handshake_fuzz {
namespace {

std::vector<std::byte> encoded(const link::Incoming& incoming) {
  switch (incoming.step) {
    case link::Step::kHello: return link::encodeGreeting(incoming.step, incoming.greeting);
    case link::Step::kChallenge:
      return joined(
          {link::encodeGreeting(incoming.step, incoming.greeting), {incoming.proof.begin(), incoming.proof.end()}});
    case link::Step::kProof: return link::encodeStep(incoming.step, incoming.proof);
    case link::Step::kWelcome: return link::encodeStep(incoming.step, {});
    case link::Step::kReject: return link::encodeReject(incoming.reason);
  }
  return {};
}

void feed(Bytes input) {
  Choices choices(input);
  link::Frame frame;
  frame.header.kind = choices.below(4) == 3 ? wire::FrameKind::kMessage : wire::FrameKind::kHandshake;
  Bytes payload = choices.rest();
  frame.payload.assign(payload.begin(), payload.end());
  Result<link::Incoming> incoming = link::parseHandshake(frame);
  if (!incoming.ok()) return;
  // The proofs are computed over what was written again: there must be one way to write each.
  promise(encoded(*incoming) == frame.payload, "a message that is read is written as it came");
  promise(incoming->step != link::Step::kReject || !incoming->reason.ok(), "a rejection has a reason");
}

Inputs seeds() {
  link::Greeting greeting;
  greeting.worker = {"trainer0", 3};
  greeting.nonce.fill(std::byte{7});
  link::Proof proof{};
  Inputs messages = {link::encodeGreeting(link::Step::kHello, greeting),
                     joined({link::encodeGreeting(link::Step::kChallenge, greeting), {proof.begin(), proof.end()}}),
                     link::encodeStep(link::Step::kProof, proof), link::encodeStep(link::Step::kWelcome, {}),
                     link::encodeReject(unauthenticated("the job key is not the one of this job"))};
  greeting.version = 1;
  messages.push_back(link::encodeGreeting(link::Step::kHello, greeting));
  for (auto& message : messages) message.insert(message.begin(), std::byte{0});
  return messages;
}

const Fuzzer kHandshake("handshake", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::handshake_fuzz
