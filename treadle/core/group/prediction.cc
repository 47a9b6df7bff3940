#include "treadle/core/group/prediction.h"

#include <algorithm>
#include <bit>

#include "treadle/core/group/choice.h"

namespace treadle::group {
namespace {

// The closed forms of one operation; S, b and q are bytes of the data, of a block and of a chunk.
class Forms {
 public:
  Forms(Algorithm algorithm, const Description& what, const Placement& placement)
      : what_(what),
        algorithm_(algorithm),
        elementBytes_(sizeOf(what.movedBy(algorithm))),
        members_(placement.members()),
        together_(placement.mostTogether()),
        hosts_(placement.hosts()),
        atBorder_(placement.mostAtBorder()),
        isSpread_(hosts_ > 1) {}

  Amounts amounts() const {
    Amounts data = moved();
    if (!isSpread_) data.networkBytes = 0;
    if (elementBytes_ != sizeOf(what_.dataType)) data.scratchBytes += asFloats();
    const bool withStarts = algorithm_ == Algorithm::kExchange || algorithm_ == Algorithm::kTree;
    return withStarts ? data : after(agreement(), data);
  }

 private:
  // ---- sizes
  double n() const { return members_; }
  double others() const { return members_ - 1; }
  double outside() const { return members_ - together_; }
  // The height of the binomial tree, and the children of its top.
  double height() const { return std::bit_width(static_cast<unsigned>(members_)) - 1; }
  double topChildren() const { return std::bit_width(static_cast<unsigned>(members_ - 1)); }
  static uint64_t partOf(uint64_t count, int members) {
    const auto parts = static_cast<uint64_t>(members);
    return count / parts + (count % parts == 0 ? 0 : 1);
  }
  // The memory of wide_staging.h.
  double asFloats() const {
    return all() + (what_.operation == OperationKind::kReduceScatter ? bytesOf(blockCount()) : 0);
  }
  uint64_t blockCount() const { return partOf(what_.count, members_); }
  uint64_t chunkCount() const { return std::max<uint64_t>(1, what_.chunkBytes / elementBytes_); }
  double bytesOf(uint64_t count) const { return static_cast<double>(count) * static_cast<double>(elementBytes_); }
  double chunksOf(uint64_t count) const {
    return static_cast<double>(count / chunkCount() + (count % chunkCount() == 0 ? 0 : 1));
  }
  double all() const { return bytesOf(what_.count); }     // S
  double block() const { return bytesOf(blockCount()); }  // b
  double blockChunks() const { return chunksOf(blockCount()); }
  double chunk(uint64_t count) const { return bytesOf(std::min(count, chunkCount())); }  // q, or less

  static Amounts after(const Amounts& first, Amounts second) {
    second.messages += first.messages;
    second.steps += first.steps;
    second.allMessages += first.allMessages;
    second.serialMessages += first.serialMessages;
    return second;
  }

  // ---- starts
  Amounts agreement() const {
    if (agreementOf(what_, members_) == Agreement::Kind::kAllToAll)
      return {.messages = others(), .steps = 1, .allMessages = n() * others(), .serialMessages = others()};
    return {.messages = topChildren(),
            .steps = 2 * height(),
            .allMessages = 2 * others(),
            .serialMessages = 2 * topChildren()};
  }

  // ---- data
  Amounts moved() const {
    switch (algorithm_) {
      case Algorithm::kExchange: return exchange();
      case Algorithm::kTree: return tree();
      case Algorithm::kRoot: return root();
      case Algorithm::kRing: return what_.operation == OperationKind::kAllReduce ? ring() : chain();
      case Algorithm::kCirculant: return circulant();
      case Algorithm::kDirect: return direct();
      case Algorithm::kHierarchical: return hierarchical();
      case Algorithm::kAutomatic: break;
    }
    return {};
  }

  // With the starts from each to each: n-1 messages in one step.
  Amounts exchange() const {
    Amounts data = agreement();
    const auto bytes = [&](double sent, double byAll, double serial, double network) {
      data.bytes = sent, data.allBytes = byAll, data.serialBytes = serial, data.networkBytes = network;
    };
    switch (what_.operation) {
      case OperationKind::kAllReduce:
        bytes(others() * all(), n() * others() * all(), others() * all(), together_ * outside() * all());
        break;
      case OperationKind::kBroadcast:
      case OperationKind::kSend: bytes(others() * all(), others() * all(), others() * all(), outside() * all()); break;
      case OperationKind::kReduce: bytes(all(), others() * all(), others() * all(), outside() * all()); break;
      case OperationKind::kReduceScatter:
      case OperationKind::kAllGather:
      case OperationKind::kAllToAll:
        bytes(others() * block(), n() * others() * block(), others() * block(), together_ * outside() * block());
        break;
      case OperationKind::kGather: bytes(block(), others() * block(), others() * block(), outside() * block()); break;
      case OperationKind::kScatter:
        bytes(others() * block(), others() * block(), others() * block(), outside() * block());
        break;
      case OperationKind::kAllToAllV:
      case OperationKind::kSparseAllReduce:
      case OperationKind::kBarrier: break;
    }
    return data;
  }

  // Binomial (Thakur et al. 2005): log2 n messages of the whole data one after the other up, and as many down. The data
  // of a broadcast goes up only from its root, as many levels as that rank has bits.
  Amounts tree() const {
    Amounts data = agreement();
    const bool reduces = what_.operation == OperationKind::kAllReduce;
    const double up = reduces ? topChildren() : std::popcount(what_.root);
    data.bytes = topChildren() * all();
    data.allBytes = (reduces ? 2 : 1) * others() * all();
    data.serialBytes = (up + topChildren()) * all();
    data.networkBytes = std::min(topChildren(), outside()) * all();
    return data;
  }

  // One member receives n-1 times the data; the sum of an all-reduce goes down the tree. That member sends nothing
  // while it adds a chunk of all, which takes about as long as taking it in.
  Amounts root() const {
    const bool toAll = what_.operation == OperationKind::kAllReduce;
    const double down = toAll ? topChildren() : 0, sent = toAll ? topChildren() : 1;
    const double chunks = chunksOf(what_.count), sums = toAll ? 2 : 1;
    return {.messages = sent * chunks,
            .bytes = sent * all(),
            .steps = 1 + (toAll ? height() : 0),
            .allMessages = sums * others() * chunks,
            .allBytes = sums * others() * all(),
            .serialMessages = (others() + down) * chunks,
            .serialBytes = (others() + down) * all(),
            .idleBytes = toAll ? others() * all() : 0,
            .networkBytes = std::max(outside(), down) * all()};
  }

  // Patarasuk and Yuan 2009: 2 (n-1) steps of one block.
  Amounts ring() const {
    const double sent = 2 * others();
    return {.messages = sent * blockChunks(),
            .bytes = sent * block(),
            .steps = sent,
            .allMessages = n() * sent * blockChunks(),
            .allBytes = sent * all(),
            .serialMessages = sent * blockChunks(),
            .serialBytes = sent * block(),
            .networkBytes = atBorder_ * sent * block()};
  }

  // A broadcast around the ring: the last member gets its first chunk after n-1 steps, and the others follow.
  Amounts chain() const {
    const double chunks = chunksOf(what_.count), between = n() - 2;
    return {.messages = chunks,
            .bytes = all(),
            .steps = others(),
            .allMessages = others() * chunks,
            .allBytes = others() * all(),
            .serialMessages = chunks + between,
            .serialBytes = all() + between * chunk(what_.count),
            .networkBytes = atBorder_ * all()};
  }

  // Träff 2024: log2 n rounds of `members`, which have a block each; then `passes` - 1 times as many backwards. If a
  // round moves b blocks, b - 1 of the members send them in two pieces. A member takes the last chunk of a
  // round before the next one begins.
  Amounts rounds(int members, uint64_t blockCount, double passes) const {
    Amounts data;
    for (int left = members; left > 1; left = (left + 1) / 2) {
      const int blocks = left / 2;
      const uint64_t count = static_cast<uint64_t>(blocks) * blockCount;
      data.steps += passes;
      data.messages += passes * (chunksOf(count) + (blocks - 1.0) / members);
      data.idleBytes += passes * chunk(count);
      data.bytes += passes * bytesOf(count);
    }
    data.serialBytes = data.bytes;
    data.serialMessages = data.messages;
    data.allMessages = n() * data.messages;
    data.allBytes = n() * data.bytes;
    return data;
  }

  // A round moves blocks to the member so many ranks away as blocks are left. A reduce-scatter has scratch for the
  // blocks that are left after the first of several rounds.
  Amounts circulant() const {
    const double passes = what_.operation == OperationKind::kAllReduce ? 2 : 1;
    Amounts data = rounds(members_, blockCount(), passes);
    for (int left = members_; left > 1; left = (left + 1) / 2) {
      const int distance = (left + 1) / 2, leaving = std::min({together_, members_ - together_, atBorder_ * distance});
      data.networkBytes += passes * leaving * bytesOf(static_cast<uint64_t>(left / 2) * blockCount());
    }
    data.allBytes = passes * others() * all();
    if (what_.operation == OperationKind::kReduceScatter && members_ > 2)
      data.scratchBytes = bytesOf(static_cast<uint64_t>((members_ + 1) / 2) * blockCount());
    return data;
  }

  // On each host rounds with one block for each member, and between hosts with one block of that for each host.
  Amounts hierarchical() const {
    const uint64_t ofMember = partOf(what_.count, together_), ofHost = partOf(ofMember, hosts_);
    const Amounts local = rounds(together_, ofMember, 2);
    Amounts data = after(local, rounds(hosts_, ofHost, 2));
    data.networkBytes = together_ * data.bytes;
    data.bytes += local.bytes;
    data.allBytes += local.allBytes;
    data.serialBytes += local.serialBytes;
    data.idleBytes += local.idleBytes;
    data.localMessages = local.serialMessages;
    data.localBytes = local.bytes;
    return data;
  }

  // Direct exchange (Chan et al. 2007): each step sends a block to, or gets one from, each other member.
  Amounts direct() const {
    switch (what_.operation) {
      case OperationKind::kAllReduce: return blocksFromEachToEach(2);
      case OperationKind::kReduce: return directReduce();
      case OperationKind::kReduceScatter:
      case OperationKind::kAllGather:
      case OperationKind::kAllToAll:
      case OperationKind::kAllToAllV: return blocksFromEachToEach(1);
      case OperationKind::kGather: return blocksOfOne(1);
      case OperationKind::kScatter: return blocksOfOne(others());
      case OperationKind::kBroadcast:
      case OperationKind::kSend:
      case OperationKind::kSparseAllReduce:
      case OperationKind::kBarrier: break;
    }
    return {};
  }

  Amounts blocksFromEachToEach(double steps) const {
    const double sent = steps * others();
    return {.messages = sent * blockChunks(),
            .bytes = sent * block(),
            .steps = steps,
            .allMessages = n() * sent * blockChunks(),
            .allBytes = sent * all(),
            .serialMessages = sent * blockChunks(),
            .serialBytes = sent * block(),
            .networkBytes = steps * together_ * outside() * block()};
  }

  // The root gets a share and the result of a block from each; the others send n blocks.
  Amounts directReduce() const {
    return {.messages = n() * blockChunks(),
            .bytes = n() * block(),
            .steps = 2,
            .allMessages = others() * (n() + 1) * blockChunks(),
            .allBytes = others() * (all() + block()),
            .serialMessages = 2 * others() * blockChunks(),
            .serialBytes = 2 * others() * block(),
            .scratchBytes = block(),
            .networkBytes = (together_ + 1) * outside() * block()};
  }

  // The root sends or receives n-1 blocks; `sent`: by the member that sends most.
  Amounts blocksOfOne(double sent) const {
    return {.messages = sent * blockChunks(),
            .bytes = sent * block(),
            .steps = 1,
            .allMessages = others() * blockChunks(),
            .allBytes = others() * block(),
            .serialMessages = others() * blockChunks(),
            .serialBytes = others() * block(),
            .networkBytes = outside() * block()};
  }

  const Description& what_;
  const Algorithm algorithm_;
  const size_t elementBytes_;
  const int members_, together_, hosts_, atBorder_;
  const bool isSpread_;
};

}  // namespace

Amounts amountsOf(Algorithm algorithm, const Description& what, const Placement& placement) {
  return Forms(algorithm, what, placement).amounts();
}

Prediction predict(Algorithm algorithm, const Description& what, const Placement& placement,
                   const cluster::Costs& costs) {
  const Amounts moved = amountsOf(algorithm, what, placement);
  const bool isSpread = placement.hosts() > 1;
  const cluster::LinkCosts& link = isSpread ? costs.betweenHosts : costs.sameHost;
  const double memory = costs.sameHost.bandwidth, bandwidth = std::min(memory, link.bandwidth);
  const double latency = moved.steps * link.latency;
  const double ofCore = std::max(1.0, static_cast<double>(placement.mostTogether()) / costs.cores);  // members
  const double local = ofCore * (moved.localMessages * costs.message + moved.localBytes / memory);
  const double share = static_cast<double>(placement.mostTogether()) / placement.members() / costs.cores;
  // A byte is taken in half of the time in which it is copied in and taken. A byte of scratch memory costs as much as
  // both: fresh pages cost more, warm ones less.
  const double allBytes = moved.allBytes + placement.members() * moved.scratchBytes;
  return {.path = latency + (moved.serialMessages - moved.localMessages) * costs.message + local +
                  (moved.serialBytes - moved.localBytes) / bandwidth + moved.idleBytes / (2 * memory) +
                  moved.scratchBytes / memory,
          .cores = share * (moved.allMessages * costs.message + allBytes / memory),
          .network = isSpread ? latency + local + moved.networkBytes / link.bandwidth : 0};
}

}  // namespace treadle::group
