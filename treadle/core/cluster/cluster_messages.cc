#include "treadle/core/cluster/cluster_messages.h"

#include "treadle/core/cluster/launch.h"
#include "treadle/core/link/handshake.h"

namespace treadle::cluster {
namespace {

constexpr size_t kTextBytes = 8192;

wire::Writer begin(ClusterKind kind) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(kind));
  return writer;
}

void writeBytes(wire::Writer& writer, Bytes bytes) {
  writer.number(static_cast<uint32_t>(bytes.size()));
  writer.raw(bytes);
}

std::vector<std::byte> readBytes(wire::Reader& reader) {
  size_t count = reader.count(1);
  if (count > kMostGatheredBytes) reader.fail();
  Bytes bytes = reader.raw(reader.ok() ? count : 0);
  return {bytes.begin(), bytes.end()};
}

void writeCount(wire::Writer& writer, const WorkCount& count) {
  writer.number(count.sent);
  writer.number(count.handled);
  writer.number(count.gone);
  writer.number(static_cast<uint8_t>(count.idle));
}

WorkCount readCount(wire::Reader& reader) {
  WorkCount count;
  count.sent = reader.number<uint64_t>();
  count.handled = reader.number<uint64_t>();
  count.gone = reader.number<uint64_t>();
  count.idle = reader.boolean();
  return count;
}

std::vector<std::byte> encodeVerdict(ClusterKind kind, int rank, const Status& why) {
  wire::Writer writer = begin(kind);
  writer.number(static_cast<int32_t>(rank));
  writeFailure(writer, why);
  return writer.take();
}

void readValues(wire::Reader& reader, std::vector<GatheredValue>& values) {
  size_t count = reader.count(8);
  if (count > static_cast<size_t>(kMaxWorldSize)) reader.fail();
  values.resize(reader.ok() ? count : 0);
  for (GatheredValue& value : values) {
    value.rank = reader.number<int32_t>();
    value.bytes = readBytes(reader);
  }
}

void readRound(wire::Reader& reader, ClusterMessage& message) {
  message.round = reader.number<uint64_t>();
  switch (message.kind) {
    case ClusterKind::kEnter: message.value = readBytes(reader); break;
    case ClusterKind::kGathered: readValues(reader, message.values); break;
    case ClusterKind::kIdle:
    case ClusterKind::kProbeAnswer: message.count = readCount(reader); break;
    case ClusterKind::kNotAll: message.why = readFailure(reader); break;
    default: break;
  }
}

void readRank(wire::Reader& reader, ClusterMessage& message) {
  message.rank = reader.number<int32_t>();
  if (message.rank < 0 || message.rank >= kMaxWorldSize) reader.fail();
  if (message.kind == ClusterKind::kSuspect || message.kind == ClusterKind::kOut) message.why = readFailure(reader);
  if (message.kind != ClusterKind::kAdmit) return;
  message.worker.worker = {reader.string(link::kNameBytes), message.rank};
  message.worker.addresses = readAddresses(reader);
}

void readFields(wire::Reader& reader, ClusterMessage& message) {
  switch (message.kind) {
    case ClusterKind::kEnter:
    case ClusterKind::kGathered:
    case ClusterKind::kIdle:
    case ClusterKind::kProbe:
    case ClusterKind::kProbeAnswer:
    case ClusterKind::kNotAll: return readRound(reader, message);
    case ClusterKind::kSuspect:
    case ClusterKind::kOut:
    case ClusterKind::kAdmit:
    case ClusterKind::kAdmitted:
    case ClusterKind::kHere:
    case ClusterKind::kTakeOver:
    case ClusterKind::kKeeper:
    case ClusterKind::kConnected: return readRank(reader, message);
    case ClusterKind::kLeft: message.text = reader.string(kTextBytes); return;
    case ClusterKind::kFinish:
    case ClusterKind::kTaken:
    case ClusterKind::kWhatIsLeft:
    case ClusterKind::kFollow: return;
  }
  reader.fail();
}

}  // namespace

std::vector<std::byte> encodePlain(ClusterKind kind) { return begin(kind).take(); }

std::vector<std::byte> encodeRound(ClusterKind kind, uint64_t round) {
  wire::Writer writer = begin(kind);
  writer.number(round);
  return writer.take();
}

std::vector<std::byte> encodeRank(ClusterKind kind, int rank) {
  wire::Writer writer = begin(kind);
  writer.number(static_cast<int32_t>(rank));
  return writer.take();
}

std::vector<std::byte> encodeCount(ClusterKind kind, uint64_t round, const WorkCount& count) {
  wire::Writer writer = begin(kind);
  writer.number(round);
  writeCount(writer, count);
  return writer.take();
}

std::vector<std::byte> encodeEnter(uint64_t round, Bytes value) {
  wire::Writer writer = begin(ClusterKind::kEnter);
  writer.number(round);
  writeBytes(writer, value);
  return writer.take();
}

std::vector<std::byte> encodeGathered(uint64_t round, const std::vector<GatheredValue>& values) {
  wire::Writer writer = begin(ClusterKind::kGathered);
  writer.number(round);
  writer.number(static_cast<uint32_t>(values.size()));
  for (const GatheredValue& value : values) {
    writer.number(static_cast<int32_t>(value.rank));
    writeBytes(writer, value.bytes);
  }
  return writer.take();
}

std::vector<std::byte> encodeNotAll(uint64_t round, const Status& why) {
  wire::Writer writer = begin(ClusterKind::kNotAll);
  writer.number(round);
  writeFailure(writer, why);
  return writer.take();
}

std::vector<std::byte> encodeSuspect(int rank, const Status& why) {
  return encodeVerdict(ClusterKind::kSuspect, rank, why);
}

std::vector<std::byte> encodeOut(int rank, const Status& why) { return encodeVerdict(ClusterKind::kOut, rank, why); }

std::vector<std::byte> encodeAdmit(const RosterEntry& worker) {
  wire::Writer writer = begin(ClusterKind::kAdmit);
  writer.number(static_cast<int32_t>(worker.worker.rank));
  writer.string(worker.worker.name);
  writeAddresses(writer, worker.addresses);
  return writer.take();
}

std::vector<std::byte> encodeLeft(const std::string& text) {
  wire::Writer writer = begin(ClusterKind::kLeft);
  writer.string(std::string_view(text).substr(0, kTextBytes));
  return writer.take();
}

Result<ClusterMessage> parseClusterMessage(Bytes payload) {
  wire::Reader reader(payload);
  ClusterMessage message;
  message.kind = static_cast<ClusterKind>(reader.number<uint8_t>());
  readFields(reader, message);
  TREADLE_RETURN_IF_ERROR(reader.finished("a message of the cluster"));
  return message;
}

}  // namespace treadle::cluster
