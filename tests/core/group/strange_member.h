#pragma once
// A bare membership plays a member of a group, rank 1, and sends what it likes to a worker with a real service, rank 0.

#include "tests/core/group/group_job.h"
#include "tests/support/gate.h"

namespace treadle::test {

inline group::Message abortOfGroup() {
  group::Message abort;
  abort.kind = group::MessageKind::kAbort;
  abort.sequence = group::kWholeGroup;
  abort.status = peerLost("w7", "worker 'w7' (rank 7) was lost");
  return abort;
}

class StrangeMember : public ::testing::Test {
 protected:
  // Of the group that rank 0 makes.
  virtual GroupOptions options() const = 0;
  // The operation of the group that rank 0 begins.
  virtual Future<void> begin() = 0;
  // The workers, by rank in the group.
  virtual std::vector<std::string> members() const { return job_->names(); }
  // So that the strange member is rank 0 of the group, and the other one its first child in the tree, a leaf.
  std::vector<std::string> strangerFirst() const {
    std::vector<std::string> names = job_->names();
    std::swap(names[0], names[1]);
    return names;
  }

  class Listener final : public cluster::MessageHandler {
   public:
    void onMessage(int, const std::shared_ptr<link::Connection>&, link::Message message) override {
      auto parsed = group::parse(std::move(message));
      if (!parsed.ok()) return;
      if (!first_.ready()) firstMessage_.set(*parsed);
      if (parsed->kind == group::MessageKind::kResult) results_.add();
      if (parsed->kind == group::MessageKind::kAck) acks_.add();
      if (parsed->kind == group::MessageKind::kAbort) aborts_.add();
    }
    void onLost(int, const Status& why) override { lost_.set(why.message()); }

    Promise<group::Message> firstMessage_;
    Future<group::Message> first_ = firstMessage_.future();
    Counter results_, acks_, aborts_;
    Promise<std::string> lost_;
    Future<std::string> lostFuture_ = lost_.future();
  };

  // Another room of the worker. It hears of a loss on the thread that closed the connection, and keeps it there.
  struct Bystander final : cluster::MessageHandler {
    void onMessage(int, const std::shared_ptr<link::Connection>&, link::Message) override {}
    void onLost(int, const Status&) override {
      heard.open();
      goesOn.wait();
    }
    Gate heard, goesOn;
  };

  void SetUp() override {
    if (!holdsALoss_) bystander_.goesOn.open();
    job_ = std::make_unique<LocalJob>(size_, [&](LocalWorker& worker) {
      if (worker.membership->self().rank > 0) return worker.membership->setHandler(link::Subject::kGroup, listener_);
      worker_ = std::make_unique<GroupWorker>(worker);
      worker.membership->setHandler(link::Subject::kGroup, worker_->groups());
      worker.membership->setHandler(link::Subject::kRpc, bystander_);
    });
    group_ = ProcessGroup::make(*worker_, members(), options());
    // The listener gets the group's number with its start.
    future_ = begin();
    first_ = listener_.first_.wait(kPatience);
  }

  void TearDown() override {
    worker_->groups().close(cancelled("the test is over"));
    job_.reset();
  }

  void sendWith(group::Message message, Bytes data) {
    message.group = first_.group;
    sendRaw(encode(message), data);
  }
  void sendRaw(const std::vector<std::byte>& payload, Bytes data = {}) {
    const Buffer buffer = Buffer::borrow(data.data(), data.size());
    job_->worker(1)
        .membership
        ->send(0, link::Subject::kGroup, payload, {&buffer, data.empty() ? 0U : 1U}, link::SendMode::kCapture, kNever)
        .ignore();
  }

  void expectCutOff(const std::string& reason) {
    EXPECT_FALSE(listener_.lostFuture_.wait(kPatience).empty());
    Status first = failureOf(future_);
    EXPECT_TRUE(first.code() == Code::kPeerLost || first.code() == Code::kDataLoss) << first.toString();
    EXPECT_TRUE(contains(first.message(), reason)) << first.message();
    EXPECT_EQ(first.worker(), "w1");
    Status later = failureOf(barrier(group_));
    EXPECT_EQ(later.code(), Code::kPeerLost) << later.toString();
    EXPECT_EQ(later.worker(), "w1");
  }

  int size_ = 2;
  bool holdsALoss_ = false;
  Bystander bystander_;
  Listener listener_;
  std::unique_ptr<GroupWorker> worker_;
  std::unique_ptr<LocalJob> job_;
  ProcessGroup group_;
  Future<void> future_;
  group::Message first_;  // the start that rank 0 sent to rank 1 or 2
};

}  // namespace treadle::test
