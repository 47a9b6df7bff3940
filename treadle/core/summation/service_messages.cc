#include "treadle/core/summation/service_messages.h"

#include <utility>

#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::summation {
namespace {

constexpr uint8_t kSynchronous = 0, kAsynchronous = 1;
constexpr size_t kTextBytes = 4096, kWorkerBytes = 127;  // of a failure
constexpr size_t kLeastTensorBytes = 26, kPartBytes = 24, kLeastNameBytes = 4, kMachineBytes = 4;

enum class Kind : uint8_t { kFailure = 1, kInvitation = 2, kLoss = 3, kMove = 4 };

Declaration::Tensor readTensor(wire::Reader& reader) {
  Declaration::Tensor tensor;
  const auto type = reader.number<uint8_t>();
  if (!group::isDataType(type)) reader.fail();
  tensor.type = static_cast<group::DataType>(type);
  tensor.bytes = reader.number<uint64_t>();
  tensor.name = reader.string(kMostNameBytes);
  tensor.packing.form = static_cast<Compression::Form>(reader.number<uint8_t>());
  tensor.packing.chunkElements = reader.number<uint32_t>();
  tensor.packing.elements = reader.number<uint64_t>();
  return tensor;
}

SumMode readMode(wire::Reader& reader) {
  SumMode mode;
  const auto number = reader.number<uint8_t>();
  mode.isAsynchronous = number == kAsynchronous;
  mode.staleness = reader.number<uint64_t>();
  if (number > kAsynchronous || (!mode.isAsynchronous && mode.staleness != SumMode::kAnyStaleness)) reader.fail();
  return mode;
}

Part readPart(wire::Reader& reader) {
  Part part;
  part.tensor = reader.number<uint32_t>();
  part.begin = reader.number<uint64_t>();
  part.end = reader.number<uint64_t>();
  part.machine = reader.number<uint32_t>();
  return part;
}

Status readReason(wire::Reader& reader) {
  const auto code = reader.number<uint8_t>();
  if (code == 0 || !isCode(code)) reader.fail();
  std::string text = reader.string(kTextBytes), worker = reader.string(kWorkerBytes);
  if (!reader.ok()) return {};
  return Status(static_cast<Code>(code), std::move(text)).withWorker(std::move(worker));
}

void writeReason(wire::Writer& writer, const Status& why) {
  writer.number(static_cast<uint8_t>(why.code()));
  writer.string(std::string_view(why.message()).substr(0, kTextBytes));
  writer.string(std::string_view(why.worker()).substr(0, kWorkerBytes));
}

FailureMessage readFailure(wire::Reader& reader) {
  FailureMessage failure;
  failure.number = reader.number<uint64_t>();
  failure.why = readReason(reader);
  return failure;
}

LossMessage readLoss(wire::Reader& reader) {
  LossMessage loss;
  loss.number = reader.number<uint64_t>();
  loss.server = reader.number<uint32_t>();
  loss.why = readReason(reader);
  return loss;
}

MoveMessage readMove(wire::Reader& reader) {
  MoveMessage move;
  move.number = reader.number<uint64_t>();
  move.lost = reader.number<uint32_t>();
  for (size_t left = reader.count(kMachineBytes); left > 0; --left) move.machines.push_back(reader.number<uint32_t>());
  return move;
}

Invitation readInvitation(wire::Reader& reader) {
  Invitation invitation;
  for (auto* names : {&invitation.workers, &invitation.servers})
    for (size_t left = reader.count(kLeastNameBytes); left > 0; --left) names->push_back(reader.string(kWorkerBytes));
  if (invitation.workers.empty() || invitation.servers.empty()) reader.fail();
  invitation.name = reader.string(kMostServiceNameBytes);
  invitation.timeout = Duration(reader.number<int64_t>());
  if (invitation.timeout <= Duration::zero()) reader.fail();
  return invitation;
}

}  // namespace

std::vector<std::byte> encode(const Declaration& declaration) {
  wire::Writer writer;
  writer.number(declaration.mode.isAsynchronous ? kAsynchronous : kSynchronous);
  writer.number(declaration.mode.staleness);
  writer.number(static_cast<uint32_t>(declaration.tensors.size()));
  for (const Declaration::Tensor& tensor : declaration.tensors) {
    writer.number(static_cast<uint8_t>(tensor.type));
    writer.number(tensor.bytes);
    writer.string(tensor.name);
    writer.number(static_cast<uint8_t>(tensor.packing.form));
    writer.number(tensor.packing.chunkElements);
    writer.number(tensor.packing.elements);
  }
  writer.number(static_cast<uint32_t>(declaration.parts.size()));
  for (const Part& part : declaration.parts) {
    writer.number(static_cast<uint32_t>(part.tensor));
    writer.number(part.begin);
    writer.number(part.end);
    writer.number(static_cast<uint32_t>(part.machine));
  }
  return writer.take();
}

Result<Declaration> parseDeclaration(Bytes bytes, size_t workers, size_t machines) {
  wire::Reader reader(bytes);
  Declaration declaration;
  declaration.workers = workers;
  declaration.mode = readMode(reader);
  for (size_t left = reader.count(kLeastTensorBytes); left > 0; --left)
    declaration.tensors.push_back(readTensor(reader));
  for (size_t left = reader.count(kPartBytes); left > 0; --left) declaration.parts.push_back(readPart(reader));
  TREADLE_RETURN_IF_ERROR(reader.finished("a declaration of tensors"));
  if (Status checked = declaration.check(machines); !checked.ok()) return dataLoss(checked.message());
  return declaration;
}

std::vector<std::byte> encode(const FailureMessage& failure) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(Kind::kFailure));
  writer.number(failure.number);
  writeReason(writer, failure.why);
  return writer.take();
}

std::vector<std::byte> encode(const LossMessage& loss) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(Kind::kLoss));
  writer.number(loss.number);
  writer.number(static_cast<uint32_t>(loss.server));
  writeReason(writer, loss.why);
  return writer.take();
}

std::vector<std::byte> encode(const MoveMessage& move) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(Kind::kMove));
  writer.number(move.number);
  writer.number(static_cast<uint32_t>(move.lost));
  writer.number(static_cast<uint32_t>(move.machines.size()));
  for (const Machine machine : move.machines) writer.number(static_cast<uint32_t>(machine));
  return writer.take();
}

std::vector<std::byte> encode(const Invitation& invitation) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(Kind::kInvitation));
  for (const auto* names : {&invitation.workers, &invitation.servers}) {
    writer.number(static_cast<uint32_t>(names->size()));
    for (const std::string& name : *names) writer.string(name);
  }
  writer.string(invitation.name);
  writer.number(static_cast<int64_t>(invitation.timeout.count()));
  return writer.take();
}

Result<ServiceMessage> parseServiceMessage(Bytes bytes) {
  wire::Reader reader(bytes);
  const auto kind = static_cast<Kind>(reader.number<uint8_t>());
  ServiceMessage message;
  if (kind == Kind::kFailure) {
    message = readFailure(reader);
  } else if (kind == Kind::kInvitation) {
    message = readInvitation(reader);
  } else if (kind == Kind::kLoss) {
    message = readLoss(reader);
  } else if (kind == Kind::kMove) {
    message = readMove(reader);
  } else {
    reader.fail();
  }
  TREADLE_RETURN_IF_ERROR(reader.finished("a message of a summation service"));
  return message;
}

}  // namespace treadle::summation
