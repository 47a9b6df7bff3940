#pragma once
// A listening socket on a reactor's thread, which hands over what connects to it. It takes so many at a time, so that
// whoever connects without end does not keep that thread from all else, and pauses while the process has no
// descriptors left.

#include "treadle/core/io/reactor.h"
#include "treadle/core/io/socket.h"

namespace treadle::io {

class Listener {
 public:
  struct Host {
    UniqueFunction<void(Fd)> connected;
    // It pauses for a moment: no descriptor is left, as a rule.
    UniqueFunction<void(const Status& why)> failed;
  };

  static Result<std::unique_ptr<Listener>> start(Reactor& reactor, Fd socket, Host host);
  // A callback that has begun may still run.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  class Core;
  explicit Listener(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
};

}  // namespace treadle::io
