#include "treadle/core/rpc/messages.h"

namespace treadle::rpc {
namespace {

constexpr size_t kTextBytes = 1 << 20, kEntryBytes = 28;

int32_t readRank(wire::Reader& reader, int worldSize) {
  auto rank = reader.number<int32_t>();
  if (rank < 0 || rank >= worldSize) reader.fail();
  return rank;
}

void writeId(wire::Writer& writer, const GlobalId& id) {
  writer.number(id.rank);
  writer.number(id.number);
}

GlobalId readId(wire::Reader& reader, int worldSize) {
  int32_t rank = readRank(reader, worldSize);
  return {rank, reader.number<uint64_t>()};
}

void writeEntry(wire::Writer& writer, const ForkEntry& entry) {
  writeId(writer, entry.ref);
  writer.number(entry.owner);
  writeId(writer, entry.fork);
}

ForkEntry readEntry(wire::Reader& reader, int worldSize) {
  ForkEntry entry;
  entry.ref = readId(reader, worldSize);
  entry.owner = readRank(reader, worldSize);
  entry.fork = readId(reader, worldSize);
  return entry;
}

void writeInputs(wire::Writer& writer, const std::vector<InputEntry>& inputs) {
  writer.number(static_cast<uint16_t>(inputs.size()));
  for (const InputEntry& input : inputs) {
    writer.number(input.index);
    writeId(writer, input.ref);
    writer.number(input.owner);
  }
}

std::vector<InputEntry> readInputs(wire::Reader& reader, int worldSize) {
  std::vector<InputEntry> inputs;
  auto count = reader.number<uint16_t>();
  if (count > kMostInputs) reader.fail();
  while (reader.ok() && inputs.size() < count) {
    InputEntry input;
    input.index = reader.number<uint16_t>();
    if (!inputs.empty() && input.index <= inputs.back().index) reader.fail();
    input.ref = readId(reader, worldSize);
    input.owner = readRank(reader, worldSize);
    inputs.push_back(input);
  }
  return inputs;
}

void writeStatus(wire::Writer& writer, const Status& status) {
  writer.number(static_cast<uint8_t>(status.code()));
  if (status.ok()) return;
  for (const std::string* text : {&status.message(), &status.worker(), &status.function(), &status.remoteType()})
    writer.string(std::string_view(*text).substr(0, kTextBytes));
  writer.number(static_cast<uint16_t>(status.trail().size()));
  for (const std::string& worker : status.trail()) writer.string(std::string_view(worker).substr(0, kMaxNameBytes));
}

Status readStatus(wire::Reader& reader) {
  auto code = reader.number<uint8_t>();
  if (!isCode(code)) reader.fail();
  if (code == 0) return {};
  std::string message = reader.string(kTextBytes), worker = reader.string(kTextBytes);
  std::string function = reader.string(kTextBytes), type = reader.string(kTextBytes);
  std::vector<std::string> trail;
  auto count = reader.number<uint16_t>();
  while (reader.ok() && trail.size() < count) trail.push_back(reader.string(kMaxNameBytes));
  return Status(static_cast<Code>(code), std::move(message))
      .withTrail(std::move(trail))
      .withWorker(std::move(worker))
      .withFunction(std::move(function))
      .withRemoteType(std::move(type));
}

void writeExtras(wire::Writer& writer, const MessageHeader& header) {
  writer.number(static_cast<uint32_t>(header.forks.size()));
  for (const ForkEntry& entry : header.forks) writeEntry(writer, entry);
  writer.number(static_cast<uint32_t>(header.field.size()));
  writer.raw(header.field);
}

void readExtras(wire::Reader& reader, MessageHeader& header, int worldSize) {
  for (size_t left = reader.count(kEntryBytes); left > 0; --left) header.forks.push_back(readEntry(reader, worldSize));
  Bytes field = reader.raw(reader.count(1));
  header.field.assign(field.begin(), field.end());
}

void writeRequest(wire::Writer& writer, const MessageHeader& header) {
  writer.number(header.timeLeftUs);
  writer.number(header.priority);
  writer.number(static_cast<uint8_t>(header.target.has_value()));
  if (header.target) writeId(writer, *header.target);
  writer.string(header.function);
  writer.number(header.signature);
  writer.number(static_cast<uint8_t>(header.result.has_value()));
  if (header.result) writeEntry(writer, *header.result);
  writeInputs(writer, header.inputs);
}

void readRequest(wire::Reader& reader, MessageHeader& header, int worldSize) {
  header.timeLeftUs = reader.number<uint64_t>();
  header.priority = reader.number<int8_t>();
  if (reader.boolean()) header.target = readId(reader, worldSize);
  header.function = reader.string(kMaxNameBytes);
  header.signature = reader.number<uint64_t>();
  if (reader.boolean()) header.result = readEntry(reader, worldSize);
  header.inputs = readInputs(reader, worldSize);
  if (header.type == MessageType::kFetch && !header.inputs.empty()) reader.fail();
}

}  // namespace

void encodeHeader(wire::Writer& writer, const MessageHeader& header) {
  writer.number(static_cast<uint8_t>(header.type));
  if (header.type == MessageType::kNotice) {
    writer.number(static_cast<uint8_t>(header.notice));
    return writeEntry(writer, header.fork);
  }
  writer.number(header.id);
  if (header.type == MessageType::kCancel) return;
  if (header.type == MessageType::kAnswer) writeStatus(writer, header.status);
  if (header.type == MessageType::kRequest || header.type == MessageType::kFetch) writeRequest(writer, header);
  writeExtras(writer, header);
}

void stampRequest(wire::Writer& payload, uint64_t id, uint64_t timeLeftUs) {
  payload.patch(sizeof(uint8_t), id);  // behind the type
  payload.patch(sizeof(uint8_t) + sizeof id, timeLeftUs);
}

Result<MessageHeader> parseHeader(wire::Reader& reader, int worldSize) {
  MessageHeader header;
  auto type = reader.number<uint8_t>();
  if (type < 1 || type > 5) return dataLoss("a call message of unknown type " + std::to_string(type));
  header.type = static_cast<MessageType>(type);
  if (header.type == MessageType::kNotice) {
    auto notice = reader.number<uint8_t>();
    if (notice < 1 || notice > 5) return dataLoss("an unknown notice about references");
    header.notice = static_cast<RefNotice>(notice);
    header.fork = readEntry(reader, worldSize);
  } else {
    header.id = reader.number<uint64_t>();
    if (header.type == MessageType::kAnswer) header.status = readStatus(reader);
    if (header.type == MessageType::kRequest || header.type == MessageType::kFetch)
      readRequest(reader, header, worldSize);
    if (header.type != MessageType::kCancel) readExtras(reader, header, worldSize);
  }
  TREADLE_RETURN_IF_ERROR(reader.status("the header of a call message"));
  return header;
}

}  // namespace treadle::rpc
