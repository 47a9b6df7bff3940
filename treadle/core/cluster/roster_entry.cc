#include "treadle/core/cluster/roster_entry.h"

#include "treadle/core/io/address.h"
#include "treadle/core/link/handshake.h"

namespace treadle::cluster {
namespace {

constexpr size_t kAddressBytes = 256, kAddresses = 16, kReasonBytes = 8192;

}  // namespace

std::string hostOf(const RosterEntry& entry) {
  for (const std::string& text : entry.addresses) {
    const Result<io::Address> address = io::Address::parse(text);
    if (address.ok() && !address->isUnix() && !address->isLoopback()) return address->host();
  }
  return {};
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

void writeFailure(wire::Writer& writer, const Status& why) {
  writer.number(static_cast<uint8_t>(why.code()));
  writer.string(std::string_view(why.worker()).substr(0, link::kNameBytes));
  writer.string(std::string_view(why.message()).substr(0, kReasonBytes));
}

Status readFailure(wire::Reader& reader) {
  auto code = reader.number<uint8_t>();
  std::string worker = reader.string(link::kNameBytes), text = reader.string(kReasonBytes);
  if (code == 0 || !isCode(code)) return reader.fail(), Status();
  return Status(static_cast<Code>(code), std::move(text)).withWorker(std::move(worker));
}

}  // namespace treadle::cluster
