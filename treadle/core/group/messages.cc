#include "treadle/core/group/messages.h"

#include "treadle/core/link/handshake.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::group {
namespace {

constexpr size_t kReasonBytes = 4096;

void write(wire::Writer& writer, const Description& description) {
  writer.number(static_cast<uint8_t>(description.operation));
  writer.number(static_cast<uint8_t>(description.dataType));
  writer.number(static_cast<uint8_t>(description.reduceOp));
  writer.number(description.root);
  writer.number(description.count);
  writer.number(description.smallBytes);
  writer.number(description.chunkBytes);
}

Description readDescription(wire::Reader& reader) {
  auto operation = reader.number<uint8_t>(), dataType = reader.number<uint8_t>(), reduceOp = reader.number<uint8_t>();
  bool known = operation >= 1 && operation <= static_cast<uint8_t>(OperationKind::kBarrier) && isDataType(dataType) &&
               isReduceOp(reduceOp);
  if (!known) return reader.fail(), Description{};
  Description description;
  description.operation = static_cast<OperationKind>(operation);
  description.dataType = static_cast<DataType>(dataType);
  description.reduceOp = static_cast<ReduceOp>(reduceOp);
  description.root = reader.number<uint32_t>();
  description.count = reader.number<uint64_t>();
  description.smallBytes = reader.number<uint64_t>();
  description.chunkBytes = reader.number<uint64_t>();
  return description;
}

Status readStatus(wire::Reader& reader) {
  auto code = reader.number<uint8_t>();
  std::string worker = reader.string(link::kNameBytes);
  std::string text = reader.string(kReasonBytes);
  if (!isCode(code) || code == static_cast<uint8_t>(Code::kOk)) return reader.fail(), Status();
  return Status(static_cast<Code>(code), std::move(text)).withWorker(std::move(worker));
}

}  // namespace

std::string describe(const Description& description) {
  std::string elements = std::to_string(description.count) + " " + std::string(nameOf(description.dataType));
  switch (description.operation) {
    case OperationKind::kAllReduce:
      return "allReduce (" + std::string(nameOf(description.reduceOp)) + ") of " + elements;
    case OperationKind::kBroadcast:
      return "broadcast from the group's rank " + std::to_string(description.root) + " of " + elements;
    case OperationKind::kBarrier: break;
  }
  return "barrier";
}

std::string describeOptions(const Description& description) {
  return "smallBytes " + std::to_string(description.smallBytes) + " and chunkBytes " +
         std::to_string(description.chunkBytes);
}

std::vector<std::byte> encode(const Message& message) {
  wire::Writer writer;
  writer.reserve(64);
  writer.number(message.group);
  writer.number(message.sequence);
  writer.number(static_cast<uint8_t>(message.kind));
  switch (message.kind) {
    case MessageKind::kStart: write(writer, message.description); break;
    case MessageKind::kChunk:
    case MessageKind::kAck: writer.number(message.position); break;
    case MessageKind::kAbort:
      writer.number(static_cast<uint8_t>(message.status.code()));
      writer.string(std::string_view(message.status.worker()).substr(0, link::kNameBytes));
      writer.string(std::string_view(message.status.message()).substr(0, kReasonBytes));
      break;
  }
  return writer.take();
}

Result<Message> parse(link::Message message) {
  wire::Reader reader(message.payload);
  Message parsed;
  parsed.group = reader.number<uint64_t>();
  parsed.sequence = reader.number<uint64_t>();
  auto kind = reader.number<uint8_t>();
  if (kind < 1 || kind > static_cast<uint8_t>(MessageKind::kAbort)) reader.fail();
  parsed.kind = static_cast<MessageKind>(kind);
  if (reader.ok()) switch (parsed.kind) {
      case MessageKind::kStart: parsed.description = readDescription(reader); break;
      case MessageKind::kChunk:
      case MessageKind::kAck: parsed.position = reader.number<uint64_t>(); break;
      case MessageKind::kAbort: parsed.status = readStatus(reader); break;
    }
  TREADLE_RETURN_IF_ERROR(reader.finished("a group's message"));
  bool mayHaveData = parsed.kind == MessageKind::kStart || parsed.kind == MessageKind::kChunk;
  if (message.buffers.size() > (mayHaveData ? 1U : 0U)) return dataLoss("a group's message has too many buffers");
  if (parsed.sequence == kWholeGroup && parsed.kind != MessageKind::kAbort)
    return dataLoss("a group's message has an impossible number");
  if (!message.buffers.empty()) parsed.data = std::move(message.buffers.front());
  return parsed;
}

}  // namespace treadle::group
