#include "treadle/tensor/autograd/interceptor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "treadle/core/base/error.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"
#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/checkpoint.h"

namespace treadle::autograd {

struct CurrentContext::Entry {
  explicit Entry(ContextPtr of) : context(std::move(of)) {}

  const ContextPtr context;
  std::atomic<bool> isOver = false;
};

namespace {

using Entries = std::vector<std::shared_ptr<CurrentContext::Entry>>;

// Of this thread, one list per worker of the process: several live in one process in tests. The last entry is current.
thread_local std::map<const AutogradInterceptor*, Entries> currentContexts;

// Without those that are over. Null: nothing is left; an interceptor's address may come to be another's, so no empty
// list stays.
Entries* entriesOf(const AutogradInterceptor* interceptor) {
  for (;;) {
    auto found = currentContexts.find(interceptor);
    if (found == currentContexts.end()) return nullptr;
    Entries& entries = found->second;
    const auto over = std::ranges::find_if(entries, [](const auto& entry) { return entry->isOver.load(); });
    if (over == entries.end()) return &entries;
    // Freed when the list is in order: what a context keeps may make calls then.
    const std::shared_ptr<CurrentContext::Entry> freed = std::move(*over);
    entries.erase(over);
    if (entries.empty()) currentContexts.erase(found);
  }
}

// This thread waits, in a segment or a node perhaps, and reads for others: what it calls then has nothing to do with
// it.
thread_local bool readsForOthers = false;

// As it travels.
enum class FieldMode : uint8_t { kFast = 0, kSmart = 1 };

std::vector<std::byte> fieldOf(Contexts& contexts, const ContextGraph& graph, const Departure& departure) {
  const bool smart = graph.mode() == AutogradMode::kSmart;
  wire::Writer writer;
  writer.number(graph.contextId());
  writer.number(static_cast<uint8_t>(smart ? FieldMode::kSmart : FieldMode::kFast));
  writer.number(static_cast<uint32_t>(departure.indexes.size()));
  if (departure.indexes.empty()) return writer.take();
  for (int64_t index : departure.indexes) writer.number(static_cast<uint32_t>(index));
  writer.number(departure.messageId);
  if (!smart) return writer.take();
  const size_t before = writer.size();
  (departure.lineage ? *departure.lineage : Lineage()).write(writer);
  contexts.countLineage(writer.size() - before);
  return writer.take();
}

// What a field says; where nothing is said of tensors, no message of the graph.
struct Field {
  int64_t context = 0;
  AutogradMode mode = AutogradMode::kFast;
  std::vector<uint32_t> indexes;
  int64_t messageId = -1;
  LineagePtr lineage;
};

Field parseField(Bytes bytes) {
  wire::Reader reader(bytes);
  Field field;
  field.context = reader.number<int64_t>();
  const auto mode = reader.number<uint8_t>();
  field.mode = mode == static_cast<uint8_t>(FieldMode::kSmart) ? AutogradMode::kSmart : AutogradMode::kFast;
  field.indexes.resize(reader.count(sizeof(uint32_t)));
  for (uint32_t& index : field.indexes) index = reader.number<uint32_t>();
  bool inOrder = std::ranges::adjacent_find(field.indexes, std::greater_equal<>()) == field.indexes.end();
  if (!field.indexes.empty()) {
    field.messageId = reader.number<int64_t>();
    if (field.mode == AutogradMode::kSmart)
      field.lineage = std::make_shared<Lineage>(valueOrThrow(Lineage::read(reader)));
  }
  throwIfError(reader.finished("the autograd field of a message"));
  if (mode > static_cast<uint8_t>(FieldMode::kSmart)) raise(dataLoss("the autograd field of a message names no mode"));
  // In order, so none twice: the receive node has an input for each, far larger than the number that asks for it.
  if (!inOrder) raise(dataLoss("the autograd field of a message names a tensor twice, or not in order"));
  if (!field.indexes.empty() && (field.messageId < 0 || field.messageId >= Lineage::kNumbers))
    raise(dataLoss("the autograd field of a message has a number that no message has"));
  return field;
}

// A message that leaves within a context: collects its tensors while they are encoded, and records those that
// need a gradient back.
class OutgoingContextHook final : public bridge::OutgoingTensorHook {
 public:
  OutgoingContextHook(Contexts& contexts, ContextPtr context, int peerRank, std::string function)
      : contexts_(contexts), context_(std::move(context)), peerRank_(peerRank), function_(std::move(function)) {}

  void add(const at::Tensor& tensor) override { tensors_.push_back(tensor); }

  std::vector<std::byte> field() override {
    {
      MutexLock lock(context_->mutex);
      if (context_->ended)
        raise(notFound("autograd context " + std::to_string(context_->id) + " has ended while a call within it ran"));
      // Noted also for a message without such tensors: its handler may send some on, and so the peer must
      // hear of the context's end.
      context_->known.insert(peerRank_);
    }
    Departure departure = valueOrThrow(context_->graph->addSend(peerRank_, std::move(function_), tensors_));
    tensors_.clear();
    recorded_ = departure.messageId;
    return fieldOf(contexts_, *context_->graph, departure);
  }

  // The message was not sent: a send that nobody received would never get a gradient and fail the next pass.
  void abandon() override { context_->graph->forget(std::span(&recorded_, 1)); }

 private:
  Contexts& contexts_;
  const ContextPtr context_;
  const int peerRank_;
  std::string function_;
  int64_t recorded_ = -1;
  std::vector<at::Tensor> tensors_;
};

// A call that can be no part of a graph across workers, as it is made while gradients are computed, or is computed
// again then. It is refused where its tensors, or what comes back, would be taken for a part of one.
class RefusingHook final : public bridge::OutgoingTensorHook {
 public:
  enum class Place : uint8_t { kSegment, kNode };

  RefusingHook(Place place, std::string function) : place_(place), function_(std::move(function)) {}

  void add(const at::Tensor& tensor) override {
    if (place_ == Place::kNode && tensor.defined() && tensor.requires_grad())
      raise(
          failedPrecondition("'" + function_ +
                             "' was called with a tensor that requires a gradient, in a node or hook of a distributed "
                             "backward pass, of which the call is no part: detach the tensor, or make an "
                             "AutogradContext for the call"));
  }
  std::vector<std::byte> field() override {
    if (place_ == Place::kSegment)
      raise(failedPrecondition("'" + function_ +
                               "' was called in a checkpointed segment, whose second run no other worker would take "
                               "part in: make the call outside of the segment, and give it the result as an input"));
    return {};
  }

 private:
  const Place place_;
  const std::string function_;
};

// A message that came within a context: gives the tensors that the sender named their receive node.
class IncomingContextHook final : public bridge::IncomingTensorHook {
 public:
  IncomingContextHook(ContextPtr arrived, int from, Field field)
      : context(std::move(arrived)), peerRank(from), field_(std::move(field)) {}
  // A message that was refused before it was decoded, or nobody waited for any more, is one that was dropped.
  ~IncomingContextHook() override {
    if (!decoded_ && !field_.indexes.empty()) context->graph->received().refuse({peerRank, field_.messageId});
  }

  void add(const at::Tensor& tensor) override { tensors_.push_back(tensor); }

  void decoded() override {
    // Only when all values are decoded: a message that is refused must leave no trace in the context.
    std::vector<at::Tensor> taking;
    for (uint32_t index : field_.indexes) {
      if (index >= tensors_.size()) raise(dataLoss("a message names more tensors for autograd than it has"));
      taking.push_back(tensors_[index]);
    }
    tensors_.clear();
    // No function name: only a send is named in error messages, by the worker that made it.
    Status added = context->graph->addReceive({field_.messageId, peerRank, ""}, field_.lineage, taking);
    decoded_ = added.code() != Code::kDataLoss;  // then nothing of it was taken
    throwIfError(added);
  }

  const ContextPtr context;
  const int peerRank;

 private:
  bool decoded_ = false;
  const Field field_;
  std::vector<at::Tensor> tensors_;
};

// Static cast: every hook of a worker is made by its one interceptor. Null where there is none.
const IncomingContextHook* hookOf(rpc::IncomingHook* request) { return static_cast<IncomingContextHook*>(request); }

class ContextScope final : public rpc::HandlerScope {
 public:
  ContextScope(AutogradInterceptor& interceptor, const IncomingContextHook& request, const std::string& function)
      : context_(request.context),
        current_(interceptor, context_),
        run_(context_->graph->handlerRuns(), function, request.peerRank) {}

 private:
  const ContextPtr context_;
  const CurrentContext current_;
  const RecordedRun run_;
};

class CleanReading final : public rpc::ReadingScope {
 public:
  CleanReading(AutogradInterceptor& interceptor, const bridge::CleanThreadState& clean)
      : state_(clean), none_(interceptor, nullptr) {}
  ~CleanReading() override { readsForOthers = before_; }
  CleanReading(const CleanReading&) = delete;
  CleanReading& operator=(const CleanReading&) = delete;

 private:
  const bool before_ = std::exchange(readsForOthers, true);
  const bridge::CleanThreadState::Scope state_;
  const CurrentContext none_;
};

}  // namespace

ContextPtr AutogradInterceptor::current() const {
  const Entries* entries = entriesOf(this);
  return entries == nullptr ? nullptr : entries->back()->context;
}

CurrentContext::CurrentContext(const AutogradInterceptor& interceptor, ContextPtr context) : interceptor_(interceptor) {
  if (entriesOf(&interceptor) == nullptr && !context) return;
  entry_ = std::make_shared<Entry>(std::move(context));
  currentContexts[&interceptor].push_back(entry_);
}

// In the list of another thread it stays until that thread looks: at its next call or context.
CurrentContext::~CurrentContext() {
  if (!entry_) return;
  entry_->isOver = true;
  entriesOf(&interceptor_);
}

std::unique_ptr<rpc::OutgoingHook> AutogradInterceptor::onRequest(int rank, const std::string& function) {
  const ContextPtr context = current();
  if (!readsForOthers) {
    if (isInSegment() && (context || Pass::isInNode()))
      return std::make_unique<RefusingHook>(RefusingHook::Place::kSegment, function);
    // A context that a node or hook makes for itself is another matter.
    const std::optional<int64_t> running = Pass::contextInNode();
    if (running && at::GradMode::is_enabled() && (!context || context->id == *running))
      return std::make_unique<RefusingHook>(RefusingHook::Place::kNode, function);
  }
  // As for any operation, nothing is recorded without gradients: neither here nor there.
  if (!context || !at::GradMode::is_enabled()) return nullptr;
  return std::make_unique<OutgoingContextHook>(contexts_, context, rank, function);
}

std::unique_ptr<rpc::OutgoingHook> AutogradInterceptor::onReply(int rank, const std::string& function,
                                                                rpc::IncomingHook* request) {
  cleanState_.apply();  // the handler may have left another
  const IncomingContextHook* hook = hookOf(request);
  if (hook == nullptr) return nullptr;
  return std::make_unique<OutgoingContextHook>(contexts_, hook->context, rank, function);
}

std::shared_ptr<rpc::IncomingHook> AutogradInterceptor::onArrival(int rank, Bytes bytes) {
  Field field = parseField(bytes);
  if (field.lineage) throwIfError(contexts_.checkRanks(*field.lineage));
  ContextPtr context = valueOrThrow(contexts_.arrived(field.context, field.mode, rank));
  return std::make_shared<IncomingContextHook>(std::move(context), rank, std::move(field));
}

// Also a context that a handler left current.
void AutogradInterceptor::afterTask() {
  cleanState_.apply();
  const auto over = currentContexts.extract(this);  // freed here, when it is in the list no more
}

std::unique_ptr<rpc::HandlerScope> AutogradInterceptor::onHandler(const std::string& function,
                                                                  rpc::IncomingHook* request) {
  const IncomingContextHook* hook = hookOf(request);
  return hook == nullptr ? nullptr : std::make_unique<ContextScope>(*this, *hook, function);
}

std::unique_ptr<rpc::ReadingScope> AutogradInterceptor::onReading() {
  if (cleanState_.isThere() && !current() && !isInSegment() && !Pass::isInNode()) return nullptr;
  return std::make_unique<CleanReading>(*this, cleanState_);
}

AutogradInterceptor& interceptorOf(Worker& worker) {
  auto* interceptor = dynamic_cast<AutogradInterceptor*>(worker.engine().interceptor());
  if (interceptor == nullptr)
    raise(failedPrecondition("worker '" + worker.self().name +
                             "' was joined without tensors; join with treadle::join of <treadle/rpc.h>"));
  return *interceptor;
}

ContextPtr partIn(Worker& worker, int64_t contextId) {
  ContextPtr context = valueOrThrow(interceptorOf(worker).contexts().partIn(contextId));
  if (context) throwIfError(context->usable());
  return context;
}

}  // namespace treadle::autograd
