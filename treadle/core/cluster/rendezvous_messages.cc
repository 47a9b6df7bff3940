#include "treadle/core/cluster/rendezvous_messages.h"

#include "treadle/core/cluster/launch.h"

namespace treadle::cluster {
namespace {

wire::Writer begin(Step step) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(step));
  return writer;
}

// On the wire: microseconds, the largest number for no limit.
uint64_t microsecondsOf(Duration limit) {
  if (limit == kNoTimeout) return UINT64_MAX;
  auto count = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  return count > 0 ? static_cast<uint64_t>(count) : 0;
}

Duration durationOf(uint64_t microseconds) {
  constexpr uint64_t kYear = uint64_t{366} * 24 * 3600 * 1'000'000;
  return microseconds > kYear ? kNoTimeout : std::chrono::microseconds(microseconds);
}

// An entry takes eight times the bytes of an empty one in a message: the number is bounded before memory is taken.
Roster readRoster(wire::Reader& reader) {
  size_t count = reader.count(8);
  if (count > static_cast<size_t>(kMaxWorldSize)) reader.fail();
  Roster roster(reader.ok() ? count : 0);
  int rank = 0;
  for (RosterEntry& entry : roster) {
    entry.worker.rank = rank++;
    entry.worker.name = reader.string(link::kNameBytes);
    entry.addresses = readAddresses(reader);
  }
  return roster;
}

void writeEntry(wire::Writer& writer, const RosterEntry& entry) {
  writer.string(entry.worker.name);
  writeAddresses(writer, entry.addresses);
}

Present readPresent(wire::Reader& reader) {
  Present present;
  present.keeper = reader.number<int32_t>();
  present.costs = readCosts(reader);
  size_t count = reader.count(12);
  if (count > static_cast<size_t>(kMaxWorldSize)) reader.fail();
  present.workers.resize(reader.ok() ? count : 0);
  int last = -1;
  for (RosterEntry& entry : present.workers) {
    entry.worker.rank = reader.number<int32_t>();
    if (entry.worker.rank <= last || entry.worker.rank >= kMaxWorldSize) reader.fail();
    last = entry.worker.rank;
    entry.worker.name = reader.string(link::kNameBytes);
    entry.addresses = readAddresses(reader);
  }
  return present;
}

}  // namespace

wire::FrameLimits rendezvousLimits() { return {.payloadBytes = 16U << 20, .bufferBytes = 0, .buffers = 0}; }

std::vector<std::byte> encodeRegistration(const Registration& registration) {
  wire::Writer writer = begin(Step::kRegister);
  writer.number(static_cast<int32_t>(registration.world.ranks));
  writer.number(static_cast<int32_t>(registration.world.servers));
  writer.number(microsecondsOf(registration.timeLeft));
  writeAddresses(writer, registration.addresses);
  return writer.take();
}

std::vector<std::byte> encodeRoster(const Roster& roster, const Costs& costs) {
  wire::Writer writer = begin(Step::kRoster);
  writeCosts(writer, costs);
  writer.number(static_cast<uint32_t>(roster.size()));
  for (const RosterEntry& entry : roster) writeEntry(writer, entry);
  return writer.take();
}

std::vector<std::byte> encodeRank(Step step, int rank) {
  wire::Writer writer = begin(step);
  writer.number(static_cast<int32_t>(rank));
  return writer.take();
}

std::vector<std::byte> encodePresent(const Present& present) {
  wire::Writer writer = begin(Step::kPresent);
  writer.number(static_cast<int32_t>(present.keeper));
  writeCosts(writer, present.costs);
  writer.number(static_cast<uint32_t>(present.workers.size()));
  for (const RosterEntry& entry : present.workers) {
    writer.number(static_cast<int32_t>(entry.worker.rank));
    writeEntry(writer, entry);
  }
  return writer.take();
}

std::vector<std::byte> encodeStep(Step step) { return begin(step).take(); }

std::vector<std::byte> encodeFailure(const Status& why) {
  wire::Writer writer = begin(Step::kFail);
  writeFailure(writer, why);
  return writer.take();
}

std::vector<std::byte> encodeProbe(uint32_t number, size_t sizeBytes) {
  wire::Writer writer = begin(Step::kProbe);
  writer.number(number);
  std::vector<std::byte> probe = writer.take();
  probe.resize(probe.size() + sizeBytes);
  return probe;
}

std::vector<std::byte> encodeEcho(uint32_t number) {
  wire::Writer writer = begin(Step::kEcho);
  writer.number(number);
  return writer.take();
}

Result<RendezvousMessage> parseRendezvous(Bytes payload) {
  wire::Reader reader(payload);
  RendezvousMessage message;
  auto step = reader.number<uint8_t>();
  if (step < 1 || step > 10) return dataLoss("an unknown message at the rendezvous");
  message.step = static_cast<Step>(step);
  if (message.step == Step::kRegister) {
    message.registration.world.ranks = reader.number<int32_t>();
    message.registration.world.servers = reader.number<int32_t>();
    message.registration.timeLeft = durationOf(reader.number<uint64_t>());
    message.registration.addresses = readAddresses(reader);
  }
  if (message.step == Step::kRoster) {
    message.costs = readCosts(reader);
    message.roster = readRoster(reader);
  }
  if (message.step == Step::kProbe || message.step == Step::kEcho) message.number = reader.number<uint32_t>();
  if (message.step == Step::kProbe) reader.raw(reader.left());
  if (message.step == Step::kRank || message.step == Step::kGone) message.rank = reader.number<int32_t>();
  if (message.rank < -1 || message.rank >= kMaxWorldSize) reader.fail();
  if (message.step == Step::kPresent) message.present = readPresent(reader);
  if (message.step == Step::kFail) message.failure = readFailure(reader);
  TREADLE_RETURN_IF_ERROR(reader.finished("a message at the rendezvous"));
  return message;
}

}  // namespace treadle::cluster
