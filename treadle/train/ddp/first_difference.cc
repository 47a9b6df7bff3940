#include "treadle/train/ddp/first_difference.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "treadle/core/base/listed.h"
#include "treadle/train/ddp/hash128.h"
#include "treadle/train/ddp/of_all_ranks.h"

namespace treadle::ddp {
namespace {

constexpr size_t kMostRanksListed = 8, kMostLinesQuoted = 3;
constexpr std::string_view kBeyondTheEnd = "nothing more";

struct Summary {
  Hash128 hash;
  uint64_t lines = 0;
  bool operator==(const Summary&) const = default;
};

// A line as it is sent; a long one is cut, and shown with its hash.
struct SentLine {
  Hash128 hash;
  uint32_t sizeBytes = 0;
  std::array<char, 480> text = {};
  uint32_t unused = 0;
};

Hash128 hashOfText(const Hash128& before, std::string_view text) {
  return hashed(before, std::as_bytes(std::span(text)));
}

// One for each number of lines: the hash of the first so many.
std::vector<Hash128> hashesOfPrefixes(const std::vector<std::string>& lines) {
  std::vector<Hash128> hashes(1);
  for (const std::string& line : lines) hashes.push_back(hashOfText(hashes.back(), line));
  return hashes;
}

Hash128 hashOfFirst(const std::vector<Hash128>& prefixes, uint64_t count) {
  return count < prefixes.size() ? prefixes[count] : hashOfText(prefixes.back(), kBeyondTheEnd);
}

template <class T>
bool allEqual(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [&](const T& value) { return value == values.front(); });
}

SentLine sentLine(const std::vector<std::string>& lines, uint64_t number) {
  const std::string_view line = number < lines.size() ? std::string_view(lines[number]) : kBeyondTheEnd;
  SentLine sent{.hash = hashOfText({}, line)};
  sent.sizeBytes = static_cast<uint32_t>(line.copy(sent.text.data(), sent.text.size()));
  return sent;
}

// Bytes of a peer, which may be anything.
std::string readable(const SentLine& line) {
  std::string text(line.text.data(), std::min<size_t>(line.sizeBytes, line.text.size()));
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  return text.size() < line.text.size() ? text : text + "... with the hash " + inHex(line.hash);
}

std::string haveInWords(const std::vector<size_t>& ranks) {
  const std::string list = listed(ranks, kMostRanksListed, [](size_t rank) { return std::to_string(rank); });
  return ranks.size() == 1 ? "rank " + list + " has " : "ranks " + list + " have ";
}

std::string differenceInWords(const std::vector<SentLine>& ofRanks) {
  std::vector<std::pair<const SentLine*, std::vector<size_t>>> alike;  // in the order of their first ranks
  for (size_t rank = 0; rank < ofRanks.size(); ++rank) {
    auto found = std::find_if(alike.begin(), alike.end(),
                              [&](const auto& one) { return one.first->hash == ofRanks[rank].hash; });
    if (found == alike.end()) found = alike.emplace(found, &ofRanks[rank], std::vector<size_t>());
    found->second.push_back(rank);
  }
  std::string words;
  for (size_t i = 0; i < std::min(alike.size(), kMostLinesQuoted); ++i)
    words += (i > 0 ? "; " : "") + haveInWords(alike[i].second) + readable(*alike[i].first);
  if (alike.size() > kMostLinesQuoted) words += "; other ranks have others";
  return words;
}

}  // namespace

std::optional<std::string> firstDifference(const ProcessGroup& group, const std::vector<std::string>& lines) {
  const std::vector<Hash128> prefixes = hashesOfPrefixes(lines);
  const std::vector<Summary> all = ofAllRanks(group, Summary{prefixes.back(), lines.size()});
  if (allEqual(all)) return std::nullopt;
  // All have the same first `same` lines, and not the same first `other` lines.
  uint64_t same = 0, other = 0;
  for (const Summary& one : all) other = std::max(other, one.lines);
  while (other - same > 1) {
    const uint64_t middle = same + (other - same) / 2;
    (allEqual(ofAllRanks(group, hashOfFirst(prefixes, middle))) ? same : other) = middle;
  }
  return differenceInWords(ofAllRanks(group, sentLine(lines, same)));
}

}  // namespace treadle::ddp
