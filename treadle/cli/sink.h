#pragma once
// Where the launcher writes: standard output or standard error, without ever waiting for whoever reads it. A
// pager that pauses must not keep the launcher from passing on a Ctrl-C or from noticing a dead worker.
//
// A pipe or terminal is opened a second time, because O_NONBLOCK on the descriptor that we were given would
// hold for the shell too, which shares it. What cannot go out yet is queued; the owner reads `full()` and
// stops producing. One thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/fd.h"
#include "treadle/core/io/reactor.h"

namespace treadle::cli {

class Sink {
 public:
  static constexpr size_t kFullBytes = 1024 * 1024;

  // `fd` stays the caller's. `onRoom` is called when a queue that was full has been written.
  Sink(io::Reactor& reactor, int fd, UniqueFunction<void()> onRoom);
  ~Sink();

  void append(std::string_view text);
  void flush();  // writes what goes out at once; the reactor's events bring the rest on its way

  bool empty() const { return queue_.size() == written_; }
  bool full() const { return queue_.size() - written_ >= kFullBytes; }
  // errno of the write that failed, after which everything is dropped; or 0.
  int error() const { return error_; }

 private:
  ssize_t writeSome();
  void waitForRoom(bool wanted);

  io::Reactor& reactor_;
  const int given_;
  io::Fd own_;  // a second, non-blocking way to the same file, where there is one
  bool socket_ = false, waiting_ = false;
  int error_ = 0;
  std::string queue_;
  size_t written_ = 0;  // bytes at the start of the queue that are out
  UniqueFunction<void()> onRoom_;
};

// Calls a function for the events of one descriptor.
class OnEvents final : public io::EventHandler {
 public:
  explicit OnEvents(UniqueFunction<void()> callback) : callback_(std::move(callback)) {}
  void onEvents(uint32_t) override { callback_(); }

 private:
  UniqueFunction<void()> callback_;
};

}  // namespace treadle::cli
