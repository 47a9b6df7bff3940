#pragma once
// Files as a checkpoint needs them: one that appears under its name only when it is whole, and one that is
// read with every length checked. One object belongs to one thread at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "treadle/core/base/status.h"
#include "treadle/core/io/fd.h"

namespace treadle::safetensors {

// Writes beside `path` under a temporary name. commit() makes the bytes durable and renames; until it has
// succeeded, whatever was at `path` stays as it was, through a crash of the program or the machine too. An
// object destroyed before that removes its temporary file.
class NewFile {
 public:
  // Makes the temporary file. Fails as the system does: NotFound when the folder is missing,
  // ResourceExhausted when there are no descriptors left, FailedPrecondition when it must not be written or
  // `path` is a folder.
  static Result<NewFile> create(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  // All of `bytes` behind what was written before. After a failure the object is good for nothing but its
  // end.
  Status write(std::span<const std::byte> bytes);
  // Once. After a failure of its last step (the folder) the new file is in place, but might not survive a
  // power cut.
  Status commit();

 private:
  NewFile(std::string path, std::string temporary, io::Fd fd);

  std::string path_;
  std::string temporary_;  // empty: nothing to remove
  io::Fd fd_;
};

// A regular file opened for reading. Its size is that of the moment of opening; a file that shrinks later is
// an error of the read that misses the bytes.
class OldFile {
 public:
  // FailedPrecondition for what is no regular file: a FIFO or a device could make a read wait for ever.
  static Result<OldFile> open(const std::string& path);

  uint64_t sizeBytes() const { return sizeBytes_; }
  // Exactly `into.size()` bytes; DataLoss when the file has fewer. Any thread, several at once.
  Status read(uint64_t offset, std::span<std::byte> into) const;

 private:
  OldFile(io::Fd fd, uint64_t sizeBytes) : fd_(std::move(fd)), sizeBytes_(sizeBytes) {}

  io::Fd fd_;
  uint64_t sizeBytes_;
};

}  // namespace treadle::safetensors
