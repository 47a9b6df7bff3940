#pragma once
// pushPull with peers that send what they like: bare memberships play all members of a group but one, which is real.

#include <gtest/gtest.h>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/fusion_messages.h"
#include "treadle/core/group/messages.h"

namespace treadle::test {

// `count` floats in one dimension, to be added.
inline group::Signature floats(uint64_t count) { return {group::DataType::kFloat32, ReduceOp::kSum, {count}}; }

// Keeps the messages that the real member sends.
class NamesListener final : public cluster::MessageHandler {
 public:
  void onMessage(int, const std::shared_ptr<link::Connection>&, link::Message message) override {
    auto parsed = group::parse(std::move(message));
    if (!parsed.ok()) return;
    MutexLock lock(mutex_);
    messages_.push_back(std::move(*parsed));
    changed_.notifyAll();
  }
  void onLost(int, const Status&) override { lost.open(); }

  // The next one of this kind, once it is there. Those before it are skipped.
  group::Message next(group::MessageKind kind) {
    std::vector<group::Message> all = until(kind);
    return all.empty() ? group::Message() : std::move(all.back());
  }
  // The next ones, up to the first of this kind; none when it does not come.
  std::vector<group::Message> until(group::MessageKind kind) {
    const TimePoint deadline = patience();
    std::vector<group::Message> all;
    MutexLock lock(mutex_);
    for (;;) {
      while (at_ < messages_.size()) {
        all.push_back(messages_[at_++]);
        if (all.back().kind == kind) return all;
      }
      if (!changed_.waitUntil(lock, deadline)) {
        ADD_FAILURE() << waitedInVain("no message has come").message();
        return {};
      }
    }
  }

  Gate lost;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<group::Message> messages_ TREADLE_GUARDED_BY(mutex_);
  size_t at_ TREADLE_GUARDED_BY(mutex_) = 0;
};

class PeerOfNames : public ::testing::Test {
 protected:
  explicit PeerOfNames(int real, int size = 2, LocalJobOptions options = {}) : real_(real) {
    job_ = std::make_unique<LocalJob>(
        size,
        [&](LocalWorker& worker) {
          if (worker.membership->self().rank != real_)
            return worker.membership->setHandler(link::Subject::kGroup, listener_);
          worker_ = std::make_unique<GroupWorker>(worker);
          worker.membership->setHandler(link::Subject::kGroup, worker_->groups());
        },
        options);
    group_ = ProcessGroup::make(*worker_, job_->names(), {.name = "pair"});
    barrier_ = barrier(group_);
    id_ = listener_.next(group::MessageKind::kStart).group;
  }
  ~PeerOfNames() override {
    worker_->groups().close(cancelled("the test is over"));
    job_.reset();
  }

  Future<void> offer(const std::string& name) { return pushPull(group_, name, std::span(data_)); }

  // From one of the peers to the real member.
  void send(int from, group::Message message, Bytes data = {}) {
    message.group = id_;
    const Buffer buffer = Buffer::borrow(data.data(), data.size());
    job_->worker(from)
        .membership
        ->send(real_, link::Subject::kGroup, encode(message), {&buffer, data.empty() ? 0U : 1U},
               link::SendMode::kCapture, kNever)
        .ignore();
  }
  void sendBody(int from, group::MessageKind kind, std::vector<std::byte> body,
                group::Stream stream = group::Stream::kFused) {
    group::Message message;
    message.stream = stream;
    message.kind = kind;
    message.body = std::move(body);
    send(from, std::move(message));
  }
  int peer() const { return 1 - real_; }  // in a group of two

  // One clear error for all that is in flight and all that comes later.
  void expectGroupFails(const Future<void>& offered, const std::string& reason) {
    const std::string name = "w" + std::to_string(peer());
    const Status first = failureOf(offered);
    EXPECT_TRUE(first.code() == Code::kPeerLost || first.code() == Code::kDataLoss) << first.toString();
    EXPECT_TRUE(contains(first.message(), reason));
    EXPECT_EQ(first.worker(), name) << first.toString();
    EXPECT_FALSE(failureOf(barrier_).ok());
    const Status later = failureOf(offer("later"));
    EXPECT_EQ(later.worker(), name) << later.toString();
    listener_.lost.wait();
  }

  const int real_;
  NamesListener listener_;
  std::unique_ptr<GroupWorker> worker_;
  std::unique_ptr<LocalJob> job_;
  std::vector<float> data_ = std::vector<float>(100);
  ProcessGroup group_;
  Future<void> barrier_;
  uint64_t id_ = 0;
};

// The peer plays rank 1, or ranks 1 and 2, and rank 0 is real.
class PeerOfRankZero : public PeerOfNames {
 protected:
  explicit PeerOfRankZero(int size = 2, LocalJobOptions options = {}) : PeerOfNames(0, size, options) {}

  void sendOffers(const group::Offers& offers, int from = 1) {
    sendBody(from, group::MessageKind::kOffers, encode(offers));
  }
  // The next operation that rank 0 has begun of a batch.
  group::Message nextStart() { return listener_.next(group::MessageKind::kStart); }
  // Takes part in it: in a group of two, with small data, that is all.
  template <class T>
  void answer(group::Message start, const std::vector<T>& values) {
    start.data = {};
    start.elements = values.size();
    send(1, std::move(start), std::as_bytes(std::span(values)));
  }
};

}  // namespace treadle::test
