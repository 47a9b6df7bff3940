#include "treadle/core/summation/record.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "treadle/core/base/log.h"

namespace treadle::summation {

namespace {

std::filesystem::path pathOf(const SummationTimes& times, const std::string& folder) {
  std::string name = std::to_string(times.number) + "." + times.worker + std::string(kTimesSuffix);
  std::ranges::replace(name, '/', '_');
  return std::filesystem::path(folder) / name;
}

}  // namespace

void record(const SummationTimes& times, const std::string& folder) {
  std::error_code ignored;  // writing says why
  std::filesystem::create_directories(folder, ignored);
  const std::filesystem::path path = pathOf(times, folder);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << textOf(times);
  file.close();
  if (!file) logWarn(times.worker, "the times of a summation service cannot be written to " + path.string());
}

void removeRecord(const SummationTimes& times, const std::string& folder) {
  std::error_code ignored;  // there may be none
  std::filesystem::remove(pathOf(times, folder), ignored);
}

}  // namespace treadle::summation
