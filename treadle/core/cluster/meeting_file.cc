#include "treadle/core/cluster/meeting_file.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "treadle/core/io/fd.h"

namespace treadle::cluster {
namespace {

constexpr std::string_view kBegin = "treadle ";

}  // namespace

Status writeMeetingFile(const std::string& path, const io::Address& address) {
  const std::string written = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(written, std::ios::trunc);
    file << kBegin << address.toString() << "\n";
    if (!file.flush())
      return io::errnoStatus(Code::kFailedPrecondition, "the meeting file " + written + " cannot be written", errno);
  }
  if (std::rename(written.c_str(), path.c_str()) == 0) return {};
  Status why = io::errnoStatus(Code::kFailedPrecondition, "the meeting file " + path + " cannot be written", errno);
  (void)std::remove(written.c_str());
  return why;
}

Result<io::Address> readMeetingFile(const std::string& path) {
  std::array<char, 512> line{};
  std::ifstream file(path);
  file.getline(line.data(), line.size());
  std::string_view text(line.data());
  if (!text.starts_with(kBegin)) return notFound("nobody has written an address into the meeting file " + path);
  Result<io::Address> address = io::Address::parse(std::string(text.substr(kBegin.size())));
  return address.ok() ? std::move(address) : notFound("the meeting file " + path + " has no address in it");
}

void removeMeetingFile(const std::string& path, const io::Address& address) {
  Result<io::Address> written = readMeetingFile(path);
  if (written.ok() && written->toString() == address.toString()) (void)std::remove(path.c_str());
}

}  // namespace treadle::cluster
