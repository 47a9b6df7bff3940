#include "treadle/tensor/autograd/lineage.h"

#include <algorithm>
#include <bit>

namespace treadle::autograd {
namespace {

constexpr int64_t kWordBits = 64;
constexpr size_t kRunBytes = 2 * sizeof(uint32_t) + sizeof(uint64_t);
constexpr size_t kRankBytes = 2 * sizeof(uint32_t) + kRunBytes;

Status malformed() { return dataLoss("the lineage of a message is not as it is written"); }

// How many words from `begin` on stand for numbers without a gap.
template <class Words>
size_t runLength(const Words& words, size_t begin) {
  size_t end = begin + 1;
  while (end < words.size() && words[end].index == words[end - 1].index + 1) ++end;
  return end - begin;
}

}  // namespace

bool Lineage::contains(const Words& ours, const Words& theirs) {
  auto here = ours.begin();
  return std::ranges::all_of(theirs, [&](const Word& word) {
    while (here != ours.end() && here->index < word.index) ++here;
    return here != ours.end() && here->index == word.index && (word.bits & ~here->bits) == 0;
  });
}

bool Lineage::contains(const Lineage& other) const {
  return std::ranges::all_of(other.byRank_, [this](const auto& theirs) {
    auto ours = byRank_.find(theirs.first);
    return ours != byRank_.end() && contains(ours->second, theirs.second);
  });
}

void Lineage::add(int rank, int64_t number) {
  Words& words = byRank_[rank];
  const Word word{static_cast<uint32_t>(number / kWordBits), uint64_t{1} << (number % kWordBits)};
  auto found = std::ranges::lower_bound(words, word.index, {}, &Word::index);
  if (found == words.end() || found->index != word.index) found = words.insert(found, {word.index, 0});
  found->bits |= word.bits;
}

Lineage::Words Lineage::united(const Words& ours, const Words& theirs) {
  Words all;
  all.reserve(ours.size() + theirs.size());
  auto one = ours.begin(), other = theirs.begin();
  while (one != ours.end() || other != theirs.end()) {
    if (other == theirs.end() || (one != ours.end() && one->index < other->index)) {
      all.push_back(*one++);
    } else if (one == ours.end() || other->index < one->index) {
      all.push_back(*other++);
    } else {
      all.push_back({one->index, one++->bits | other++->bits});
    }
  }
  return all;
}

void Lineage::unite(const Lineage& other) {
  for (const auto& [rank, theirs] : other.byRank_) {
    Words& ours = byRank_[rank];
    ours = united(ours, theirs);
  }
}

std::vector<int> Lineage::ranks() const {
  std::vector<int> ranks;
  for (const auto& [rank, words] : byRank_) ranks.push_back(rank);
  return ranks;
}

std::vector<int64_t> Lineage::numbers(int rank) const {
  std::vector<int64_t> numbers;
  auto found = byRank_.find(rank);
  if (found == byRank_.end()) return numbers;
  for (const Word& word : found->second)
    for (uint64_t bits = word.bits; bits != 0; bits &= bits - 1)
      numbers.push_back(kWordBits * word.index + std::countr_zero(bits));
  return numbers;
}

int64_t Lineage::end(int rank) const {
  auto found = byRank_.find(rank);
  if (found == byRank_.end()) return 0;
  const Word& last = found->second.back();
  return kWordBits * last.index + kWordBits - std::countl_zero(last.bits);
}

void Lineage::write(wire::Writer& writer) const {
  writer.number(static_cast<uint32_t>(byRank_.size()));
  for (const auto& [rank, words] : byRank_) {
    writer.number(static_cast<uint32_t>(rank));
    const size_t runsAt = writer.size();
    uint32_t runs = 0;
    writer.number(runs);
    for (size_t at = 0; at < words.size(); ++runs) {
      const size_t end = at + runLength(words, at);
      writer.number(words[at].index);
      writer.number(static_cast<uint32_t>(end - at));
      for (; at < end; ++at) writer.number(words[at].bits);
    }
    writer.patch(runsAt, runs);
  }
}

Status Lineage::readWords(wire::Reader& reader, Words& words) {
  for (size_t runs = reader.count(kRunBytes); runs > 0; --runs) {
    const auto first = reader.number<uint32_t>();
    const size_t size = reader.count(sizeof(uint64_t));
    // A run that begins where the one before ended would have been a part of it.
    const bool apart = words.empty() || first > uint64_t{words.back().index} + 1;
    if (size == 0 || size > (uint64_t{1} << 32) - first || !apart) return malformed();
    for (uint32_t i = 0; i < size; ++i) {
      words.push_back({first + i, reader.number<uint64_t>()});
      if (words.back().bits == 0) return malformed();
    }
  }
  return words.empty() ? malformed() : Status();
}

Result<Lineage> Lineage::read(wire::Reader& reader) {
  Lineage lineage;
  int64_t sends = 0;
  for (size_t left = reader.count(kRankBytes); left > 0; --left) {
    const auto rank = reader.number<uint32_t>();
    const bool ascends = lineage.byRank_.empty() || static_cast<int64_t>(rank) > lineage.byRank_.rbegin()->first;
    if (rank > INT32_MAX || !ascends) return malformed();
    Words& words = lineage.byRank_[static_cast<int>(rank)];
    TREADLE_RETURN_IF_ERROR(readWords(reader, words));
    for (const Word& word : words) sends += std::popcount(word.bits);
    if (sends > kMost) return malformed();
  }
  return lineage;
}

}  // namespace treadle::autograd
