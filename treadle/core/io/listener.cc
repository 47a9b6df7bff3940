#include "treadle/core/io/listener.h"

namespace treadle::io {
namespace {

constexpr int kPerTurn = 32;
// The socket would be ready again and again until there is a descriptor.
constexpr Duration kPause = std::chrono::milliseconds(100);

}  // namespace

class Listener::Core final : public EventHandler, public std::enable_shared_from_this<Core> {
 public:
  Core(Reactor& reactor, Fd socket, Host host)
      : reactor_(reactor), socket_(std::move(socket)), host_(std::move(host)) {}

  Status begin() { return reactor_.add(socket_.get(), EPOLLIN, shared_from_this()); }

  void end() {
    MutexLock lock(mutex_);
    ended_ = true;
    reactor_.remove(socket_.get());
  }

  void onEvents(uint32_t) override {
    for (int i = 0; i < kPerTurn; ++i) {
      Result<Fd> fd = acceptFrom(socket_.get());
      if (!fd.ok()) return pause(fd.status());
      if (!fd->valid()) return;
      host_.connected(std::move(*fd));
    }
  }

 private:
  void pause(const Status& why) {
    host_.failed(why);
    MutexLock lock(mutex_);
    if (ended_) return;
    reactor_.change(socket_.get(), 0);
    reactor_.at(deadlineAfter(kPause), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->resume();
    });
  }

  void resume() {
    MutexLock lock(mutex_);
    if (!ended_) reactor_.change(socket_.get(), EPOLLIN);
  }

  Reactor& reactor_;
  const Fd socket_;
  Host host_;  // of the reactor's thread
  Mutex mutex_;
  bool ended_ TREADLE_GUARDED_BY(mutex_) = false;
};

Result<std::unique_ptr<Listener>> Listener::start(Reactor& reactor, Fd socket, Host host) {
  auto core = std::make_shared<Core>(reactor, std::move(socket), std::move(host));
  TREADLE_RETURN_IF_ERROR(core->begin());
  return std::unique_ptr<Listener>(new Listener(std::move(core)));  // NOLINT: private constructor
}

Listener::~Listener() { core_->end(); }

}  // namespace treadle::io
