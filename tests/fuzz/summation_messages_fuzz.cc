// What the machines of a summation service send each other on the connections of their job. The first byte says whether
// it is a declaration, and then the next two how many workers and machines there are.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/service_messages.h"

namespace treadle::fuzz::summation_messages_fuzz {
namespace {

using summation::Declaration;
using summation::Part;

void check(const summation::FailureMessage& failure) { promise(!failure.why.ok(), "a failure has a reason"); }

void check(const summation::Invitation& invitation) {
  promise(!invitation.workers.empty() && !invitation.servers.empty(), "a service that a server is invited to has both");
  promise(invitation.timeout > Duration::zero(), "it has a time limit");
}

void check(const summation::LossMessage& loss) { promise(!loss.why.ok(), "a loss has a reason"); }
void check(const summation::MoveMessage&) {}  // it may have any machines

void feedMessage(Bytes bytes) {
  const Result<summation::ServiceMessage> message = summation::parseServiceMessage(bytes);
  if (!message.ok()) return promise(message.status().code() == Code::kDataLoss, "what is none is damage");
  std::visit([](const auto& one) { check(one); }, *message);
  const std::vector<std::byte> again = std::visit([](const auto& one) { return summation::encode(one); }, *message);
  promise(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "a message is written as it came");
}

// Each byte of each tensor is in one part of a machine that there is, found by its place.
void checkPlaces(const Declaration& declaration, size_t machines) {
  std::vector<uint64_t> covered(declaration.tensors.size());
  for (size_t i = 0; i < declaration.parts.size(); ++i) {
    const Part& part = declaration.parts[i];
    promise(part.machine < machines && part.bytes() > 0, "a part is not empty, and of a machine");
    promise(part.begin == covered[part.tensor], "parts follow each other");
    promise(declaration.partAt(static_cast<uint32_t>(part.tensor), part.end - 1) == i, "a part is found by its bytes");
    covered[part.tensor] = part.end;
  }
  for (size_t tensor = 0; tensor < covered.size(); ++tensor)
    promise(covered[tensor] == declaration.tensors[tensor].bytes, "the parts are all of the tensor");
}

void feedDeclaration(Bytes bytes, size_t workers, size_t machines) {
  const Result<Declaration> declaration = summation::parseDeclaration(bytes, workers, machines);
  if (!declaration.ok()) return promise(declaration.status().code() == Code::kDataLoss, "what is none is damage");
  checkPlaces(*declaration, machines);
  const std::vector<std::byte> again = summation::encode(*declaration);
  promise(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "a declaration is written as it came");
}

void feed(Bytes input) {
  Choices choices(input);
  if (choices.below(2) == 0) return feedMessage(choices.rest());
  const size_t workers = 1 + choices.below(4), machines = workers + choices.below(4);
  feedDeclaration(choices.rest(), workers, machines);
}

Inputs seeds() {
  Inputs all;
  for (const Status& why : {peerLost("w1", "it was killed"), deadlineExceeded("late"), dataLoss("")}) {
    all.push_back(joined({{std::byte{0}}, summation::encode(summation::FailureMessage{7, why})}));
    all.push_back(joined({{std::byte{0}}, summation::encode(summation::LossMessage{7, 3, why})}));
  }
  for (const auto& machines : {std::vector<summation::Machine>{}, {0, 1, 4}})
    all.push_back(joined({{std::byte{0}}, summation::encode(summation::MoveMessage{7, 3, machines})}));
  for (const auto& invitation : {summation::Invitation{{"w0", "w1"}, {"s0"}, "gradients", std::chrono::seconds(60)},
                                 summation::Invitation{{"w0"}, {"s0", "s1"}, "", kNoTimeout}})
    all.push_back(joined({{std::byte{0}}, summation::encode(invitation)}));
  for (const auto& [workers, servers] : {std::pair<size_t, size_t>{1, 0}, {2, 1}, {4, 3}}) {
    const auto shares = summation::bestShares(summation::Bandwidths::even(workers, servers, 1));
    const auto packing = summation::Packing::of(summation::Compression::oneBit(), 5'000);
    auto packed = Declaration::of({{group::DataType::kFloat32, packing.bytes(), "weight", packing}}, shares);
    all.push_back(joined({{std::byte{1}, static_cast<std::byte>(workers - 1), static_cast<std::byte>(servers)},
                          summation::encode(*packed)}));
    auto declaration = Declaration::of({{group::DataType::kFloat32, 40'000, "weight"},
                                        {group::DataType::kFloat16, 0, "none"},
                                        {group::DataType::kInt64, 8, "count"}},
                                       shares);
    for (const summation::SumMode& mode : {summation::SumMode(), {true}, {true, 3}}) {
      declaration->mode = mode;
      all.push_back(joined({{std::byte{1}, static_cast<std::byte>(workers - 1), static_cast<std::byte>(servers)},
                            summation::encode(*declaration)}));
    }
  }
  return all;
}

const Fuzzer kSummationMessages("summation_messages", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_messages_fuzz
