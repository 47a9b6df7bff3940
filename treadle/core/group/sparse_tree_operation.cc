// Budget: a message to the parent and one from it, with blocks of at most smallBytes; a member with log2 n children
// copies and adds as many. Where the rows do not fit, that is wasted. As for rows that are dealt, there are the plan
// and its progress: about 500 bytes a peer.

#include "treadle/core/group/sparse_tree_operation.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "treadle/core/group/binomial_tree.h"

namespace treadle::group {
namespace {

// In place of a number of rows: they are too many.
constexpr uint64_t kTooMany = std::numeric_limits<uint64_t>::max();

}  // namespace

SparseTreeOperation::SparseTreeOperation(Setup setup, SparseData rows)
    : SparseOperation(std::move(setup), std::move(rows)),
      all_(data().ranges.rows(), 1),
      blocks_(1 + childrenOf(link().self(), link().size()).size()),
      fits_(data().whole.has_value()),
      dealing_(static_cast<size_t>(link().size())) {
  if (fits_) blocks_.front() = *std::exchange(data().whole, std::nullopt);
}

void SparseTreeOperation::onStarted(int member, uint64_t rows, Buffer data) {
  const RowType type = this->data().type;
  if (rows == kTooMany && data.sizeBytes == 0) {
    fits_ = false;
  } else if (isParent(member)) {
    if (!fits_) return violated(member, "sums of rows that were too many");
    sums_ = {};
    if (!take(sums_, member, type.layout(all_.count(0), rows), data)) return;
  } else {
    const std::vector<int> children = childrenOf(link().self(), link().size());
    const auto place = 1 + std::ranges::find(children, member) - children.begin();
    if (!take(blocks_[static_cast<size_t>(place)], member, type.sumLayout(all_.count(0), rows), data)) return;
  }
  goOn();
}

void SparseTreeOperation::goOn() {
  if (ended() || !begun()) return;
  if (!added_ && hasAllChildren() && !add()) return;
  sendStarts();
  if (ended() || !agreement().agreed()) return;
  if (!fits_) return dealAfterAll();
  data().sums = RowSums(all_, {std::move(sums_)});
  finish({});
}

bool SparseTreeOperation::hasAllChildren() const {
  return std::ranges::all_of(childrenOf(link().self(), link().size()),
                             [&](int child) { return agreement().heard(child); });
}

// Rank 0 has the sums of all.
bool SparseTreeOperation::add() {
  added_ = true;
  if (!fits_) return true;
  try {
    const RowType& type = data().type;
    sums_ = link().self() == 0 ? sumRows(blocks_, type, divisor()) : sumRows(blocks_, type.ofSums());
  } catch (const std::bad_alloc&) {
    finishWithoutMemory("the sums");
    return false;
  }
  fits_ = isSmall(sums_.layout);
  blocks_.clear();
  return true;
}

uint64_t SparseTreeOperation::elementsTo(int) const { return fits_ ? sums_.layout.count : kTooMany; }

Buffer SparseTreeOperation::dataWithStart(int) {
  return fits_ ? Buffer::borrow(sums_.bytes().data(), sums_.bytes().size()) : Buffer();
}

// A share goes only to a member that has begun: all have.
void SparseTreeOperation::dealAfterAll() {
  if (dealt()) return;
  blocks_.clear();
  sums_ = {};
  deal();
  for (const Channel& channel : plan().channels) {
    Message share = message(MessageKind::kShare);
    share.elements = rowsFor(channel.peer);
    share.data = smallRowsFor(channel.peer);
    send(channel.peer, std::move(share));
    if (ended()) return;
  }
  advance();
}

void SparseTreeOperation::onShare(int member, uint64_t rows, Buffer data) {
  const auto place = static_cast<size_t>(member);
  if (!added_ || dealing_[place]) return violated(member, "a share where none was due");
  dealing_[place] = true;
  expectShare(member, rows, std::move(data));
}

void SparseTreeOperation::onFinished() {
  blocks_.clear();
  sums_ = {};
  SparseOperation::onFinished();
}

}  // namespace treadle::group
