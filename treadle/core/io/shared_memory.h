#pragma once
// Memory that processes of one host can share (memfd_create(2)): made by one, which passes its descriptor on. Its size
// is sealed by its maker, so that no peer can cut it off under a reader, who would die of SIGBUS. Where the kernel
// forbids memfds it is private memory instead, and `shareable` is false.
//
// The memory may outlive its maker, as a tensor that lies in it keeps the whole mapping. `reclaim` then removes the
// pages that nobody uses. Locks of the kernel say which these are, see Note [Claims].
//
// Mapped for reading and writing as long as the object lives; a child of fork(2) shares it too. Any thread.

#include <sys/types.h>

#include <compare>
#include <span>

#include "treadle/core/base/buffer.h"
#include "treadle/core/io/fd.h"

namespace treadle::io {

class SharedMemory {
 public:
  // Tells one memfd from another, whatever the numbers of their descriptors.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    auto operator<=>(const Identity&) const = default;
  };

  struct Range {
    size_t begin = 0, size = 0;
  };

  // Of `sizeBytes`, a multiple of the page size, all zero. Costs address space only: pages come when they are written.
  // ResourceExhausted when there is no address space or descriptor left.
  static Result<SharedMemory> create(size_t sizeBytes);
  // Memory of this process alone, where it cannot be shared.
  static Result<SharedMemory> createPrivate(size_t sizeBytes);
  // Over the descriptor of another process, which is closed: what is adopted cannot be passed on. DataLoss for anything
  // but a memfd whose size is sealed. Keeps one descriptor, unless the memory is not `reclaimable`.
  static Result<SharedMemory> adopt(Fd fd);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  MutableBytes bytes() const { return {data_, sizeBytes_}; }
  bool shareable() const { return fd_.valid() && !adopted_; }
  int fd() const { return fd_.get(); }
  Identity identity() const { return identity_; }

  // Writes to pages that were never touched at about half the cost of faulting them in: the kernel need not zero them.
  // `offsetBytes` counts from the start. Falls back to a plain copy.
  void writeFresh(size_t offsetBytes, Bytes bytes) const;
  // Faults the pages in for writing, so that their first use costs nothing more. False when the system does not do
  // that.
  bool populate(size_t offsetBytes, size_t sizeBytes) const;
  // Gives the pages back to the system; they read as zero afterwards, in every process.
  void discard(size_t offsetBytes, size_t sizeBytes) const;

  // False for memory of this process's own; and for adopted memory when the system or its maker gives no locks. Then
  // all pages stay until the last mapping goes.
  bool reclaimable() const { return adopted_ && fd_.valid(); }
  // Of adopted memory: this process uses nothing outside of `kept` any more, for good. `kept` is sorted by `begin`.
  // Once the maker and the children that it forked have ended, gives the pages back to the system that no other process
  // claims; before that, nothing. Call it again to reclaim what others have let go of. Takes long for much memory.
  void reclaim(std::span<const Range> kept) const;

 private:
  SharedMemory(Fd fd, std::byte* data, size_t sizeBytes, Identity identity)
      : fd_(std::move(fd)), data_(data), sizeBytes_(sizeBytes), identity_(identity) {}
  void punchUnclaimed(Range gap) const;
  static Result<SharedMemory> map(Fd fd, size_t sizeBytes);

  Fd fd_;
  bool adopted_ = false;
  std::byte* data_;
  size_t sizeBytes_;
  Identity identity_;
};

}  // namespace treadle::io
