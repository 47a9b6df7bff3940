#pragma once
// Which sends something depends on: what SMART mode adds to a message, so that a backward pass knows from its roots
// which sends take part, on every worker. The idea is that of PyTorch's RFC on distributed autograd (issue 23110).
//
// A send is known by its worker and its number there. Each worker numbers its sends of a context from 0, so that a set
// of them is a row of bits for each worker: on the wire one bit for each earlier send of the context, in words of 64
// that are not all 0, and 16 bytes for each worker. In memory it is twice that. No set takes more than a constant times
// the bytes that it came in, whatever they are.
//
// Budget: to unite two sets, a copy of both.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::autograd {

class Lineage {
 public:
  bool empty() const { return byRank_.empty(); }
  bool contains(const Lineage& other) const;

  void add(int rank, int64_t number);
  void unite(const Lineage& other);

  // The workers whose sends are among these, and the numbers of those of one worker; both ascending.
  std::vector<int> ranks() const;
  std::vector<int64_t> numbers(int rank) const;

  // lineage := count:u32 (rank:u32 runs:u32 (first:u32 size:u32 word:u64 * size) *) *
  // Ranks ascend, and so do runs, which do not touch each other. Bit i of word w of a run stands for number
  // 64 * (first + w) + i. No word is 0.
  void write(wire::Writer& writer) const;
  // DataLoss for what `write` would not have written.
  static Result<Lineage> read(wire::Reader& reader);

  // One above the highest number of that worker; 0 where there is none.
  int64_t end(int rank) const;

  // Numbers are below this.
  static constexpr int64_t kNumbers = int64_t{64} << 32;
  // No message depends on more: what a pass makes of each is many times larger than its bit.
  static constexpr int64_t kMost = int64_t{1} << 24;

 private:
  struct Word {
    uint32_t index = 0;
    uint64_t bits = 0;  // of the numbers 64 * index and on
  };
  using Words = std::vector<Word>;  // in order, none of them 0

  static bool contains(const Words& ours, const Words& theirs);
  static Words united(const Words& ours, const Words& theirs);
  static Status readWords(wire::Reader& reader, Words& words);

  std::map<int, Words> byRank_;
};

// Null: depends on no send.
using LineagePtr = std::shared_ptr<const Lineage>;

}  // namespace treadle::autograd
