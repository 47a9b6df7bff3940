#include "treadle/core/group/messages.h"

#include <algorithm>

#include "treadle/core/base/hash.h"
#include "treadle/core/group/options.h"
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
  writer.number(description.blocks);
  writer.number(description.smallBytes);
  writer.number(description.chunkBytes);
  writer.number(description.urgency);
  writer.number(static_cast<uint8_t>(description.algorithm));
  writer.string(description.shape);
}

Description readDescription(wire::Reader& reader) {
  auto operation = reader.number<uint8_t>(), dataType = reader.number<uint8_t>(), reduceOp = reader.number<uint8_t>();
  bool known = isOperation(operation) && isDataType(dataType) && isReduceOp(reduceOp);
  if (!known) return reader.fail(), Description{};
  Description description;
  description.operation = static_cast<OperationKind>(operation);
  description.dataType = static_cast<DataType>(dataType);
  description.reduceOp = static_cast<ReduceOp>(reduceOp);
  description.root = reader.number<uint32_t>();
  description.count = reader.number<uint64_t>();
  description.blocks = reader.number<uint64_t>();
  description.smallBytes = reader.number<uint64_t>();
  description.chunkBytes = reader.number<uint64_t>();
  description.urgency = reader.number<uint32_t>();
  auto algorithm = reader.number<uint8_t>();
  if (!isAlgorithm(algorithm)) reader.fail();
  description.algorithm = static_cast<Algorithm>(algorithm);
  description.shape = reader.string(kMostShapeBytes);
  return description;
}

bool mayHaveData(MessageKind kind) {
  return kind == MessageKind::kStart || kind == MessageKind::kChunk || kind == MessageKind::kResult ||
         kind == MessageKind::kShare;
}

}  // namespace

DataType Description::movedBy(Algorithm algorithm) const {
  const bool reduces = operation == OperationKind::kAllReduce || operation == OperationKind::kReduceScatter;
  return reduces && sendsPartialResults(algorithm) ? partialType(dataType, reduceOp) : dataType;
}

std::string describe(const Description& description, int caller) {
  const std::string count = std::to_string(description.count), type(nameOf(description.dataType));
  const std::string data = " of " + (description.shape.empty() ? count + " " + type : description.shape);
  const std::string root = " the group's rank " + std::to_string(description.root);
  const std::string op = " (" + std::string(nameOf(description.reduceOp)) + ")";
  switch (description.operation) {
    case OperationKind::kAllReduce: return "allReduce" + op + data;
    case OperationKind::kBroadcast: return "broadcast from" + root + data;
    case OperationKind::kReduce: return "reduce" + op + " to" + root + data;
    case OperationKind::kReduceScatter: return "reduceScatter" + op + data;
    case OperationKind::kAllGather: return "allGather" + data;
    case OperationKind::kGather: return "gather to" + root + data;
    case OperationKind::kScatter: return "scatter from" + root + data;
    case OperationKind::kAllToAll: return "allToAll" + data;
    case OperationKind::kAllToAllV:
      return "allToAll of " + (description.shape.empty() ? "" : description.shape + " in ") + "blocks of any sizes";
    case OperationKind::kSend:
      return (caller == static_cast<int>(description.root) ? "send" : "recv") +
             (description.shape.empty() ? " of " + count + " bytes" : data);
    case OperationKind::kSparseAllReduce:
      return "sparseAllReduce" + op + " of " + count + " " + type + " in " + description.shape;
    case OperationKind::kBarrier: break;
  }
  return "barrier";
}

std::string describeOptions(const Description& description) {
  return "smallBytes " + std::to_string(description.smallBytes) + ", chunkBytes " +
         std::to_string(description.chunkBytes) + ", urgency " + std::to_string(description.urgency) +
         " and algorithm " + std::string(nameOf(description.algorithm));
}

uint64_t hashOf(std::span<const uint64_t> counts) {
  const Bytes bytes = std::as_bytes(counts);
  return base::fnv1a({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Message answerMessage(uint64_t sequence, bool begun) {
  Message message;
  message.sequence = sequence;
  message.kind = MessageKind::kAnswer;
  message.begun = begun;
  return message;
}

void writeFailure(wire::Writer& writer, const Status& failure, size_t mostBytes) {
  writer.number(static_cast<uint8_t>(failure.code()));
  writer.string(std::string_view(failure.worker()).substr(0, link::kNameBytes));
  writer.string(std::string_view(failure.message()).substr(0, mostBytes));
}

Status readFailure(wire::Reader& reader, size_t mostBytes) {
  auto code = reader.number<uint8_t>();
  std::string worker = reader.string(link::kNameBytes);
  std::string text = reader.string(mostBytes);
  if (!isCode(code) || code == static_cast<uint8_t>(Code::kOk)) return reader.fail(), Status();
  return Status(static_cast<Code>(code), std::move(text)).withWorker(std::move(worker));
}

std::vector<std::byte> encode(const Message& message) {
  wire::Writer writer;
  writer.reserve(64);
  writer.number(message.group);
  writer.number(static_cast<uint8_t>(message.stream));
  writer.number(message.sequence);
  writer.number(static_cast<uint8_t>(message.kind));
  switch (message.kind) {
    case MessageKind::kStart:
      write(writer, message.description);
      writer.number(message.elements);
      break;
    case MessageKind::kChunk:
    case MessageKind::kAck: writer.number(message.position); break;
    case MessageKind::kAbort: writeFailure(writer, message.status, kReasonBytes); break;
    case MessageKind::kAsk: break;
    case MessageKind::kAnswer: writer.number(static_cast<uint8_t>(message.begun)); break;
    case MessageKind::kResult:
    case MessageKind::kShare: writer.number(message.elements); break;
    case MessageKind::kOffers:
    case MessageKind::kOrders: writer.raw(message.body); break;
  }
  return writer.take();
}

Result<Message> parse(link::Message message) {
  wire::Reader reader(message.payload);
  Message parsed;
  parsed.group = reader.number<uint64_t>();
  auto stream = reader.number<uint8_t>();
  if (stream > static_cast<uint8_t>(Stream::kFused)) reader.fail();
  parsed.stream = static_cast<Stream>(stream);
  parsed.sequence = reader.number<uint64_t>();
  auto kind = reader.number<uint8_t>();
  if (kind < 1 || kind > static_cast<uint8_t>(MessageKind::kShare)) reader.fail();
  parsed.kind = static_cast<MessageKind>(kind);
  if (isOfNames(parsed.kind) && (parsed.stream != Stream::kFused || parsed.sequence != 0)) reader.fail();
  if (reader.ok()) switch (parsed.kind) {
      case MessageKind::kStart:
        parsed.description = readDescription(reader);
        parsed.elements = reader.number<uint64_t>();
        break;
      case MessageKind::kChunk:
      case MessageKind::kAck: parsed.position = reader.number<uint64_t>(); break;
      case MessageKind::kAbort: parsed.status = readFailure(reader, kReasonBytes); break;
      case MessageKind::kAsk: break;
      case MessageKind::kAnswer: parsed.begun = reader.boolean(); break;
      case MessageKind::kResult:
      case MessageKind::kShare: parsed.elements = reader.number<uint64_t>(); break;
      case MessageKind::kOffers:
      case MessageKind::kOrders:
        const Bytes body = reader.raw(reader.left());
        parsed.body.assign(body.begin(), body.end());
        break;
    }
  TREADLE_RETURN_IF_ERROR(reader.finished("a group's message"));
  if (message.buffers.size() > (mayHaveData(parsed.kind) ? 1U : 0U))
    return dataLoss("a group's message has too many buffers");
  const bool isForAll = parsed.kind == MessageKind::kAbort && parsed.stream == Stream::kAll;
  if (parsed.sequence == kWholeGroup && !isForAll) return dataLoss("a group's message has an impossible number");
  if (!message.buffers.empty()) parsed.data = std::move(message.buffers.front());
  // Starts are kept until the operation is called here.
  const uint64_t mostWithStart = std::min<uint64_t>(parsed.description.smallBytes, kMostSmallBytes);
  if (parsed.kind == MessageKind::kStart && parsed.data.sizeBytes > mostWithStart)
    return dataLoss("a group's start has more data than smallBytes");
  return parsed;
}

}  // namespace treadle::group
