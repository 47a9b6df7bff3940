#include "treadle/core/cluster/rendezvous_messages.h"

#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::cluster {
namespace {

constexpr size_t kAddressBytes = 256, kAddresses = 16, kReasonBytes = 8192;

wire::Writer begin(Step step) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(step));
  return writer;
}

// On the wire: microseconds, the largest number for no limit.
uint64_t microsecondsOf(Duration limit) {
  if (limit == kWhilePeerLives) return UINT64_MAX;
  auto count = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  return count > 0 ? static_cast<uint64_t>(count) : 0;
}

Duration durationOf(uint64_t microseconds) {
  constexpr uint64_t kYear = uint64_t{366} * 24 * 3600 * 1'000'000;
  return microseconds > kYear ? kWhilePeerLives : std::chrono::microseconds(microseconds);
}

void writeAddresses(wire::Writer& writer, const std::vector<std::string>& addresses) {
  writer.number(static_cast<uint32_t>(addresses.size()));
  for (const std::string& address : addresses) writer.string(address);
}

std::vector<std::string> readAddresses(wire::Reader& reader) {
  size_t count = reader.count(4);
  if (count > kAddresses) reader.fail();
  std::vector<std::string> addresses;
  for (size_t i = 0; i < count && reader.ok(); ++i) addresses.push_back(reader.string(kAddressBytes));
  return addresses;
}

Roster readRoster(wire::Reader& reader) {
  Roster roster(reader.count(8));
  int rank = 0;
  for (RosterEntry& entry : roster) {
    entry.worker.rank = rank++;
    entry.worker.name = reader.string(link::kNameBytes);
    entry.addresses = readAddresses(reader);
  }
  return roster;
}

Status readFailure(wire::Reader& reader) {
  auto code = reader.number<uint8_t>();
  std::string worker = reader.string(link::kNameBytes), text = reader.string(kReasonBytes);
  if (code == 0 || !isCode(code)) return reader.fail(), Status();
  return Status(static_cast<Code>(code), std::move(text)).withWorker(std::move(worker));
}

}  // namespace

wire::FrameLimits rendezvousLimits() { return {.payloadBytes = 16U << 20, .bufferBytes = 0, .buffers = 0}; }

std::vector<std::byte> encodeRegistration(const Registration& registration) {
  wire::Writer writer = begin(Step::kRegister);
  writer.number(static_cast<int32_t>(registration.worldSize));
  writer.number(microsecondsOf(registration.timeLeft));
  writeAddresses(writer, registration.addresses);
  return writer.take();
}

std::vector<std::byte> encodeRoster(const Roster& roster) {
  wire::Writer writer = begin(Step::kRoster);
  writer.number(static_cast<uint32_t>(roster.size()));
  for (const RosterEntry& entry : roster) {
    writer.string(entry.worker.name);
    writeAddresses(writer, entry.addresses);
  }
  return writer.take();
}

std::vector<std::byte> encodeStep(Step step) { return begin(step).take(); }

std::vector<std::byte> encodeFailure(const Status& why) {
  wire::Writer writer = begin(Step::kFail);
  writer.number(static_cast<uint8_t>(why.code()));
  writer.string(why.worker());
  writer.string(std::string_view(why.message()).substr(0, kReasonBytes));
  return writer.take();
}

Result<RendezvousMessage> parseRendezvous(Bytes payload) {
  wire::Reader reader(payload);
  RendezvousMessage message;
  auto step = reader.number<uint8_t>();
  if (step < 1 || step > 5) return dataLoss("an unknown message at the rendezvous");
  message.step = static_cast<Step>(step);
  if (message.step == Step::kRegister) {
    message.registration.worldSize = reader.number<int32_t>();
    message.registration.timeLeft = durationOf(reader.number<uint64_t>());
    message.registration.addresses = readAddresses(reader);
  }
  if (message.step == Step::kRoster) message.roster = readRoster(reader);
  if (message.step == Step::kFail) message.failure = readFailure(reader);
  TREADLE_RETURN_IF_ERROR(reader.finished("a message at the rendezvous"));
  return message;
}

}  // namespace treadle::cluster
