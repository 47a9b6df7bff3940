#include "treadle/tensor/autograd/interceptor.h"

#include "treadle/core/base/error.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"
#include "treadle/core/worker/worker.h"

namespace treadle::autograd {
namespace {

// Of this thread, one per worker of the process: several live in one process in tests.
thread_local std::map<const AutogradInterceptor*, ContextPtr> currentContexts;

// A message that leaves within a context: collects its tensors while they are encoded, and records those that
// need a gradient back.
class OutgoingContextHook final : public bridge::OutgoingTensorHook {
 public:
  OutgoingContextHook(ContextPtr context, MessageInfo message)
      : context_(std::move(context)), message_(std::move(message)) {}

  void add(const at::Tensor& tensor) override { tensors_.push_back(tensor); }

  std::vector<std::byte> field() override {
    {
      MutexLock lock(context_->mutex);
      if (context_->released)
        raise(notFound("autograd context " + std::to_string(context_->id) + " has ended while a call within it ran"));
      // Noted also for a message without such tensors: its handler may send some on, and so the peer must
      // hear of the context's end.
      context_->known.insert(message_.peerRank);
    }
    std::vector<int64_t> indexes = valueOrThrow(context_->graph->addSend(message_, tensors_));
    tensors_.clear();
    wire::Writer writer;
    writer.number(context_->id);
    writer.number(message_.messageId);
    writer.number(static_cast<uint32_t>(indexes.size()));
    for (int64_t index : indexes) writer.number(static_cast<uint32_t>(index));
    return writer.take();
  }

  // The message was not sent: a send that nobody received would never get a gradient and fail the next pass.
  void abandon() override {
    int64_t id = message_.messageId;
    context_->graph->forget(std::span(&id, 1), {});
  }

 private:
  const ContextPtr context_;
  const MessageInfo message_;
  std::vector<at::Tensor> tensors_;
};

// A message that came within a context: gives the tensors that the sender named their receive node.
class IncomingContextHook final : public bridge::IncomingTensorHook {
 public:
  IncomingContextHook(ContextPtr arrived, MessageInfo message, std::vector<uint32_t> indexes)
      : context(std::move(arrived)), message_(std::move(message)), indexes_(std::move(indexes)) {}

  void add(const at::Tensor& tensor) override { tensors_.push_back(tensor); }

  void decoded() override {
    // Only when all values are decoded: a message that is refused must leave no trace in the context.
    std::vector<at::Tensor> taking;
    for (uint32_t index : indexes_) {
      if (index >= tensors_.size()) raise(dataLoss("a message names more tensors for autograd than it has"));
      taking.push_back(tensors_[index]);
    }
    tensors_.clear();
    if (!taking.empty()) throwIfError(context->graph->addReceive(message_, taking));
  }

  const ContextPtr context;

 private:
  const MessageInfo message_;
  const std::vector<uint32_t> indexes_;
  std::vector<at::Tensor> tensors_;
};

// Static cast: every hook of a worker is made by its one interceptor.
ContextPtr contextOf(rpc::IncomingHook* request) {
  auto* hook = static_cast<IncomingContextHook*>(request);
  return hook == nullptr ? nullptr : hook->context;
}

class ContextScope final : public rpc::HandlerScope {
 public:
  ContextScope(AutogradInterceptor& interceptor, ContextPtr context) : current_(interceptor, std::move(context)) {}

 private:
  CurrentContext current_;
};

}  // namespace

ContextPtr AutogradInterceptor::exchangeCurrent(ContextPtr context) {
  auto found = currentContexts.find(this);
  if (found == currentContexts.end()) {
    if (context) currentContexts.emplace(this, std::move(context));
    return nullptr;
  }
  std::swap(found->second, context);
  // An interceptor's address may come to be another's.
  if (!found->second) currentContexts.erase(found);
  return context;
}

std::unique_ptr<rpc::OutgoingHook> AutogradInterceptor::onRequest(int rank, const std::string& function) {
  auto found = currentContexts.find(this);
  if (found == currentContexts.end()) return nullptr;
  return std::make_unique<OutgoingContextHook>(found->second, MessageInfo{contexts_.nextId(), rank, function});
}

std::unique_ptr<rpc::OutgoingHook> AutogradInterceptor::onReply(int rank, const std::string& function,
                                                                rpc::IncomingHook* request) {
  ContextPtr context = contextOf(request);
  if (!context) return nullptr;
  return std::make_unique<OutgoingContextHook>(std::move(context), MessageInfo{contexts_.nextId(), rank, function});
}

std::shared_ptr<rpc::IncomingHook> AutogradInterceptor::onArrival(int rank, Bytes field) {
  wire::Reader reader(field);
  auto id = reader.number<int64_t>(), message = reader.number<int64_t>();
  std::vector<uint32_t> indexes(reader.count(sizeof(uint32_t)));
  for (uint32_t& index : indexes) index = reader.number<uint32_t>();
  throwIfError(reader.finished("the autograd field of a message"));
  ContextPtr context = valueOrThrow(contexts_.arrived(id));
  // No function name: only a send is named in error messages, by the worker that made it.
  return std::make_shared<IncomingContextHook>(std::move(context), MessageInfo{message, rank, ""}, std::move(indexes));
}

// Also a context that a handler left current.
void AutogradInterceptor::afterTask() {
  cleanState_.apply();
  exchangeCurrent(nullptr);
}

std::unique_ptr<rpc::HandlerScope> AutogradInterceptor::onHandler(rpc::IncomingHook* request) {
  ContextPtr context = contextOf(request);
  return context ? std::make_unique<ContextScope>(*this, std::move(context)) : nullptr;
}

AutogradInterceptor& interceptorOf(Worker& worker) {
  auto* interceptor = dynamic_cast<AutogradInterceptor*>(worker.engine().interceptor());
  if (interceptor == nullptr)
    raise(failedPrecondition("worker '" + worker.self().name +
                             "' was joined without tensors; join with treadle::join of <treadle/rpc.h>"));
  return *interceptor;
}

}  // namespace treadle::autograd
