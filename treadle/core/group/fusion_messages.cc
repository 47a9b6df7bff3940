#include "treadle/core/group/fusion_messages.h"

#include <algorithm>

#include "treadle/core/group/messages.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::group {
namespace {

constexpr uint64_t kMostTensorBytes = uint64_t{1} << 62;
constexpr uint8_t kOfferEntry = 1, kFailedEntry = 2;

void write(wire::Writer& writer, const Failed& failed) {
  writer.number(failed.number);
  writeFailure(writer, failed.why, kFailureBytes);
}

void write(wire::Writer& writer, const Offer& offer) {
  writer.string(offer.name);
  writer.number(static_cast<uint8_t>(offer.signature.dataType));
  writer.number(static_cast<uint8_t>(offer.signature.reduceOp));
  writer.number(static_cast<uint32_t>(offer.signature.shape.size()));
  for (uint64_t size : offer.signature.shape) writer.number(size);
}

void write(wire::Writer& writer, const std::variant<Offer, Failed>& entry) {
  const bool isOffer = std::holds_alternative<Offer>(entry);
  writer.number(isOffer ? kOfferEntry : kFailedEntry);
  isOffer ? write(writer, std::get<Offer>(entry)) : write(writer, std::get<Failed>(entry));
}

void write(wire::Writer& writer, const Part& part) {
  writer.number(part.number);
  writer.number(part.elements.begin);
  writer.number(part.elements.end);
}

template <class T>
void writeAll(wire::Writer& writer, const std::vector<T>& values) {
  writer.number(static_cast<uint32_t>(values.size()));
  for (const T& value : values) write(writer, value);
}

Failed readFailed(wire::Reader& reader) {
  Failed failed;
  failed.number = reader.number<uint64_t>();
  failed.why = readFailure(reader, kFailureBytes);
  return failed;
}

Offer readOffer(wire::Reader& reader) {
  Offer offer;
  offer.name = reader.string(kTensorNameBytes);
  auto dataType = reader.number<uint8_t>(), reduceOp = reader.number<uint8_t>();
  if (!isDataType(dataType) || !isReduceOp(reduceOp)) return reader.fail(), Offer{};
  offer.signature.dataType = static_cast<DataType>(dataType);
  offer.signature.reduceOp = static_cast<ReduceOp>(reduceOp);
  const size_t dimensions = reader.count(sizeof(uint64_t));
  if (dimensions > kMostDimensions) return reader.fail(), Offer{};
  for (size_t i = 0; i < dimensions; ++i) offer.signature.shape.push_back(reader.number<uint64_t>());
  if (!checkTensorName(offer.name).ok() || !check(offer.signature).ok()) reader.fail();
  return offer;
}

std::variant<Offer, Failed> readEntry(wire::Reader& reader) {
  const auto kind = reader.number<uint8_t>();
  if (kind == kOfferEntry) return readOffer(reader);
  if (kind != kFailedEntry) reader.fail();
  return readFailed(reader);
}

Part readPart(wire::Reader& reader) {
  Part part;
  part.number = reader.number<uint64_t>();
  part.elements.begin = reader.number<uint64_t>();
  part.elements.end = reader.number<uint64_t>();
  if (part.elements.end < part.elements.begin) reader.fail();
  return part;
}

// `most` of them; each takes at least `elementBytes`, so that a count is bounded before anything is allocated for it.
template <class Read>
auto readAll(wire::Reader& reader, size_t most, size_t elementBytes, Read read) {
  std::vector<decltype(read(reader))> values;
  const size_t count = reader.count(elementBytes);
  if (count > most) reader.fail();
  while (reader.ok() && values.size() < count) values.push_back(read(reader));
  return values;
}

constexpr size_t kFailedBytes = 17, kEntryBytes = 11, kPartBytes = 24;  // at least

}  // namespace

uint64_t Signature::elements() const {
  uint64_t product = 1;
  for (uint64_t size : shape) product *= size;
  return product;
}

std::string textOf(std::string_view name, const std::string& group) {
  return "pushPull of '" + std::string(name) + "' in " + group;
}

std::string describe(const Signature& signature) {
  std::string sizes;
  for (uint64_t size : signature.shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return std::string(nameOf(signature.dataType)) + " [" + sizes + "] (" + std::string(nameOf(signature.reduceOp)) + ")";
}

Status check(const Signature& signature) {
  TREADLE_RETURN_IF_ERROR(checkReduces(signature.dataType, signature.reduceOp));
  const std::vector<uint64_t>& shape = signature.shape;
  if (shape.size() > kMostDimensions)
    return invalidArgument("a tensor has at most " + std::to_string(kMostDimensions) + " dimensions; this has " +
                           std::to_string(shape.size()));
  if (std::count(shape.begin(), shape.end(), 0) > 0) return {};
  uint64_t left = kMostTensorBytes / sizeOf(signature.dataType);
  for (uint64_t size : shape) left /= size;
  return left > 0 ? Status() : invalidArgument("no memory holds a tensor of " + describe(signature));
}

Status checkTensorName(std::string_view name) {
  const auto isControl = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (name.empty()) return invalidArgument("a tensor that is matched by name needs a name");
  if (name.size() > kTensorNameBytes)
    return invalidArgument("a tensor's name has at most " + std::to_string(kTensorNameBytes) + " bytes; this has " +
                           std::to_string(name.size()));
  if (std::any_of(name.begin(), name.end(), isControl))
    return invalidArgument("a tensor's name has no control characters");
  return {};
}

std::vector<std::byte> encode(const Offers& offers) {
  wire::Writer writer;
  writeAll(writer, offers.entries);
  return writer.take();
}

std::vector<std::byte> encode(const Orders& orders) {
  wire::Writer writer;
  writer.number(static_cast<uint8_t>(orders.answered));
  writeAll(writer, orders.parts);
  writeAll(writer, orders.failures);
  return writer.take();
}

Result<Offers> parseOffers(Bytes body) {
  wire::Reader reader(body);
  Offers offers;
  offers.entries = readAll(reader, kMostEntries, kEntryBytes, readEntry);
  if (offers.entries.empty()) reader.fail();
  TREADLE_RETURN_IF_ERROR(reader.finished("a member's offers"));
  return offers;
}

Result<Orders> parseOrders(Bytes body) {
  wire::Reader reader(body);
  Orders orders;
  orders.answered = reader.boolean();
  orders.parts = readAll(reader, kMostParts, kPartBytes, readPart);
  orders.failures = readAll(reader, kMostFailures, kFailedBytes, readFailed);
  if (!orders.answered && orders.parts.empty() && orders.failures.empty()) reader.fail();
  TREADLE_RETURN_IF_ERROR(reader.finished("rank 0's orders"));
  return orders;
}

}  // namespace treadle::group
