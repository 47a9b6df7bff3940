// What peers say to distributed autograd: the header fields of their messages (autograd/interceptor.h), the beginnings
// of passes, gradients, and the ends of passes and contexts (docs/protocol/autograd.md), in any order and both modes. A
// message that is refused leaves no trace; a worker answers within a context what another one understands; what goes
// back to a peer are gradients of just what it sent.

#include <algorithm>
#include <functional>

#include "tests/fuzz/tensor/message.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_messages.h"

namespace treadle::fuzz::autograd_fields_fuzz {
namespace {

using autograd::AutogradInterceptor;
using autograd::BeginMessage;
using autograd::ContextPtr;
using autograd::FinishMessage;
using autograd::GradientMessage;
using autograd::Lineage;
using autograd::MaybeGradient;
using autograd::MessageGradients;
using autograd::Pass;
using autograd::PassId;
using Tensors = std::vector<at::Tensor>;

constexpr int kSelf = 0, kPeer = 1;
constexpr size_t kMostField = 96;

struct Field {
  int64_t context = 0;
  uint8_t mode = 0;  // 1: SMART
  std::vector<uint32_t> indexes;
  int64_t message = 0;
  Lineage lineage = {};
};

std::vector<std::byte> encoded(const Field& field) {
  wire::Writer writer;
  writer.number(field.context);
  writer.number(field.mode);
  writer.number(static_cast<uint32_t>(field.indexes.size()));
  for (uint32_t index : field.indexes) writer.number(index);
  if (field.indexes.empty()) return writer.take();
  writer.number(field.message);
  if (field.mode == 1) field.lineage.write(writer);
  return writer.take();
}

Field decoded(Bytes bytes) {
  wire::Reader reader(bytes);
  Field field{reader.number<int64_t>(), reader.number<uint8_t>(), {}};
  for (size_t left = reader.count(sizeof(uint32_t)); left > 0; --left)
    field.indexes.push_back(reader.number<uint32_t>());
  if (!field.indexes.empty()) field.message = reader.number<int64_t>();
  if (!field.indexes.empty() && field.mode == 1) {
    Result<Lineage> lineage = Lineage::read(reader);
    promise(lineage.ok(), "a field that is taken has a lineage as it is written");
    field.lineage = *std::move(lineage);
  }
  promise(reader.finished("a field").ok(), "a field that is taken is whole");
  promise(std::ranges::adjacent_find(field.indexes, std::greater_equal<>()) == field.indexes.end(),
          "a field that is taken names each tensor once, in order");
  return field;
}

// A message that came, within a context.
struct Arrived {
  Field field;
  std::shared_ptr<rpc::IncomingHook> hook;
  Tensors tensors;
};

// Where the gradients for a peer go. The pass catches what is thrown here, so what is broken is kept.
class Peer final : public autograd::GradientSink {
 public:
  explicit Peer(const std::vector<Arrived>& arrived) : arrived_(arrived) {}
  ~Peer() override = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Status sendGradients(Pass& pass, int rank, std::vector<MessageGradients> messages) override {
    for (const MessageGradients& message : messages)
      held_ = held_ && rank == kPeer && std::any_of(arrived_.begin(), arrived_.end(), [&](const Arrived& one) {
                return one.field.context == pass.contextId() && one.field.message == message.messageId &&
                       areGradientsOf(one, message.gradients);
              });
    return {};
  }
  void onIdle(Pass&) override {}

  bool held() const { return held_; }

 private:
  static bool areGradientsOf(const Arrived& message, const std::vector<MaybeGradient>& gradients) {
    if (gradients.size() != message.field.indexes.size()) return false;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& tensor = message.tensors.at(message.field.indexes[i]);
      const at::Tensor gradient = gradients[i].value_or(at::Tensor());
      bool fits =
          !gradient.defined() || (gradient.sizes() == tensor.sizes() && gradient.scalar_type() == tensor.scalar_type());
      if (!fits) return false;
    }
    return true;
  }

  const std::vector<Arrived>& arrived_;
  bool held_ = true;
};

class Scene {
 public:
  explicit Scene(Bytes input) : choices_(input) { own_ = interceptor_.contexts().create(); }

  void play() {
    while (choices_.any()) {
      step();
      promise(peer_.held(), "a peer gets one gradient for each tensor it named, of its shape and type");
      promise(interceptor_.contexts().open() <= 1 + fields_, "only messages make contexts");
    }
    passes_.clear();
    promise(!leaf_.grad().defined(), "gradients are the context's");
  }

 private:
  void step() {
    switch (choices_.below(8)) {
      case 0: return arrive();
      case 1: return answer();
      case 2: return request();
      case 3: return takeGradients();
      case 4: return finish();
      case 5: return runBackward();
      case 6: return begin();
      default: return end();
    }
  }

  std::shared_ptr<rpc::IncomingHook> taken(Bytes field) {
    try {
      return interceptor_.onArrival(kPeer, field);
    } catch (const DataError&) {
    } catch (const NotFoundError&) {  // of a context that has ended
    }
    return nullptr;
  }

  void arrive() {
    const std::vector<std::byte> bytes = copyOf(choices_.bytes(choices_.below(kMostField + 1)));
    Message message = messageOf(choices_);
    Arrived arrived{{}, taken(bytes), {}};
    if (!arrived.hook) return;
    ++fields_;
    arrived.field = decoded(bytes);
    promise(encoded(arrived.field) == bytes, "a field is written as it came");
    if (decode(message, arrived)) arrived_.push_back(std::move(arrived));
  }

  // The tensors that are named take part, all or none.
  bool decode(const Message& message, Arrived& arrived) {
    rpc::Decoder decoder = coding_.decoderOf(message, arrived.hook);
    bool whole = false;
    try {
      arrived.tensors = rpc::Codec<Tensors>::decode(decoder);
      decoder.finish();
      whole = true;
    } catch (const DataError&) {
    } catch (const ArgumentError&) {  // one that cannot have a gradient, or a second message of this number
    }
    const std::vector<uint32_t>& named = arrived.field.indexes;
    for (uint32_t i = 0; i < arrived.tensors.size(); ++i) {
      bool isNamed = std::count(named.begin(), named.end(), i) != 0;
      promise(arrived.tensors[i].requires_grad() == (whole && isNamed), "just the tensors that are named take part");
    }
    return whole;
  }

  const Arrived* anyArrived() { return arrived_.empty() ? nullptr : &arrived_[choices_.below(arrived_.size())]; }

  void answer() {
    const Arrived* arrived = anyArrived();
    if (arrived == nullptr) return;
    Tensors tensors = {at::Tensor(), leaf_.clone()};
    for (const at::Tensor& one : arrived->tensors) {
      if (!one.defined()) continue;
      tensors.insert(tensors.end(), {one.clone(), one.detach(), one.clone()});
    }
    const bool ended = !interceptor_.contexts().find(arrived->field.context).ok();
    send(*interceptor_.onReply(kPeer, "f", arrived->hook.get()), tensors, ended);
  }
  void request() {
    autograd::CurrentContext current(interceptor_, own_);
    std::unique_ptr<rpc::OutgoingHook> hook = interceptor_.onRequest(kPeer, "f");
    send(*hook, {leaf_, leaf_.detach(), leaf_.clone()}, !interceptor_.contexts().find(own_->id).ok());
    if (choices_.below(4) == 0) hook->abandon();
  }

  void send(rpc::OutgoingHook& hook, const Tensors& tensors, bool mayHaveEnded) {
    coding_.encode(tensors, &hook);
    std::vector<std::byte> bytes;
    try {
      bytes = hook.field();
    } catch (const NotFoundError&) {
      return promise(mayHaveEnded, "a context that goes on takes messages");
    }
    const Field field = decoded(bytes);
    std::vector<uint32_t> needed;
    for (uint32_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].requires_grad()) needed.push_back(i);
    promise(field.indexes == needed, "a field of ours names what needs a gradient");
  }

  // As the functions in autograd/backward.cc: the pass of a message is made when it is its first here, in SMART mode by
  // the word of what takes part.
  std::shared_ptr<Pass> make(const ContextPtr& context, autograd::PassOptions options,
                             std::vector<autograd::Root> roots) {
    autograd::LeafSlots& slots = interceptor_.contexts().slots();
    auto made = Pass::create(context->graph, peer_, slots, std::move(options), std::move(roots));
    return made.ok() ? *made : nullptr;
  }
  void begin() {
    std::optional<BeginMessage> message = coding_.decode<BeginMessage>(messageOf(choices_));
    if (!message) return;
    Result<ContextPtr> context = interceptor_.contexts().find(message->id.context);
    if (!context.ok()) return;
    std::shared_ptr<Pass>& pass = passes_[{message->id.context, message->id.pass}];
    if (!pass) pass = make(*context, {message->id.pass, message->id.retainGraph, message->sends}, {});
  }
  void takeGradients() {
    std::optional<GradientMessage> message = coding_.decode<GradientMessage>(messageOf(choices_));
    if (!message) return;
    Result<ContextPtr> context = interceptor_.contexts().find(message->id.context);
    if (!context.ok()) return;
    std::shared_ptr<Pass>& pass = passes_[{message->id.context, message->id.pass}];
    if (!pass && (*context)->graph->mode() == AutogradMode::kFast)
      pass = make(*context, {message->id.pass, message->id.retainGraph}, {});
    if (!pass) return;
    for (MessageGradients& one : message->messages) {
      const size_t count = one.gradients.size();
      const auto sent = (*context)->graph->findSend(one.messageId);
      if (!pass->addReady(one.messageId, std::move(one.gradients)).ok()) return;
      promise(!sent || sent->tensorIndexes().size() == count, "a message that was sent gets one for each tensor");
    }
    pass->runUntilIdle().ignore();
    promise(pass->idle(), "gradients that came have been worked on");
  }

  void finish() {
    std::optional<FinishMessage> message = coding_.decode<FinishMessage>(messageOf(choices_));
    if (!message) return;
    auto entry = passes_.extract({message->id.context, message->id.pass});
    if (!entry || !entry.mapped()) return;
    Pass& pass = *entry.mapped();
    if (!message->failure.empty()) pass.fail(cancelled(message->failure));
    bool complete = pass.complete();
    promise(pass.finish().ok() == complete, "a pass is over when all gradients have come");
  }

  void runBackward() {
    const Arrived* arrived = anyArrived();
    if (arrived == nullptr) return;
    Result<ContextPtr> context = interceptor_.contexts().find(arrived->field.context);
    if (!context.ok()) return;
    autograd::PassOptions options{interceptor_.contexts().nextId(), choices_.below(2) == 0};
    std::vector<autograd::Root> roots;
    for (const at::Tensor& one : arrived->tensors)
      if (one.requires_grad()) roots.push_back({one.clone(), at::zeros_like(one)});
    if ((*context)->graph->mode() == AutogradMode::kSmart) {
      Result<Lineage> sends = (*context)->graph->lineageOf(roots);
      if (!sends.ok()) return;
      // What it says of this worker's own sends may be a lie.
      options.sends = sends->numbers(kSelf);
    }
    std::shared_ptr<Pass> pass = make(*context, options, roots);
    if (!pass) return;
    pass->runUntilIdle().ignore();
    pass->finish().ignore();
  }

  void end() {
    auto rank = choices_.number<uint8_t>();
    if (rank != kSelf) return interceptor_.onLost(rank);
    if (ContextPtr context = interceptor_.contexts().release(choices_.number<int64_t>())) context->end();
  }

  static std::vector<std::byte> copyOf(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

  Choices choices_;
  Coding coding_;
  AutogradInterceptor interceptor_{kSelf};
  ContextPtr own_;
  const at::Tensor leaf_ = at::ones({2}, at::kDouble).requires_grad_();
  size_t fields_ = 0;
  std::vector<Arrived> arrived_;
  Peer peer_{arrived_};
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Pass>> passes_;
};

void feed(Bytes input) { Scene(input).play(); }

// ---- seeds

// The first context of each rank (docs/protocol/autograd.md); messages are numbered from 0.
constexpr int64_t kOwnContext = 1, kFirst = 0;
constexpr int64_t idOfPeer(int64_t count) { return (int64_t{kPeer} << 40) | count; }

template <class T>
std::vector<std::byte> step(int kind, const T& value) {
  return joined({row({kind}), inputOf(Coding().encode(value))});
}
std::vector<std::byte> arrival(const Field& field, const Tensors& tensors) {
  std::vector<std::byte> bytes = encoded(field);
  return joined({row({0, static_cast<int>(bytes.size())}), bytes, inputOf(Coding().encode(tensors))});
}
std::vector<std::byte> gradients(int64_t context, int64_t message, const Tensors& tensors) {
  const std::vector<MaybeGradient> all(tensors.begin(), tensors.end());
  return step(3, GradientMessage{{context, idOfPeer(9), false}, {{message, all}}});
}
std::vector<std::byte> begin(int64_t context, const std::vector<int64_t>& sends) {
  return step(6, BeginMessage{{context, idOfPeer(9), true}, sends});
}
std::vector<std::byte> finish(int64_t context, const char* failure) {
  return step(4, FinishMessage{{context, idOfPeer(9), false}, failure});
}

Inputs seeds() {
  const at::Tensor x = at::ones({2}), g = at::ones({2}, at::kDouble), whole = at::ones({3}, at::kLong);
  const int64_t context = idOfPeer(1);
  Lineage lineage;
  lineage.add(kSelf, kFirst);
  lineage.add(kPeer, 5);
  const auto came = arrival({context, 0, {0}, 2}, {x, at::Tensor(), whole});
  const auto cameSmart = arrival({context, 1, {0}, 2, lineage}, {x, at::Tensor(), whole});
  const auto answered = row({1, 0}), requested = row({2, 1});
  return {
      joined({came, answered, gradients(context, kFirst, {g, x, x}), finish(context, "")}),
      joined({came, answered, gradients(context, kFirst, {at::Tensor(), whole, at::ones({4, 2})})}),
      joined({came, answered, gradients(context, kFirst, {g, at::ones({5}), x}), finish(context, "why")}),
      joined({came, came, row({5, 0, 0})}),
      joined({came, row({7, kPeer}), answered, came}),
      joined({cameSmart, answered, begin(context, {kFirst}), gradients(context, kFirst, {g, x, x})}),
      joined({cameSmart, answered, begin(context, {kFirst, 7}), gradients(context, kFirst, {g, x, x})}),
      joined({cameSmart, answered, row({5, 0, 0})}),
      joined({cameSmart, came, row({5, 0, 0})}),
      joined({requested, begin(kOwnContext, {kFirst}), gradients(kOwnContext, kFirst, {g, g}), finish(kOwnContext, ""),
              requested}),
      joined({requested, row({7, kSelf, 1, 0, 0, 0, 0, 0, 0, 0}), requested}),
      joined({row({2, 0}), requested, begin(kOwnContext, {kFirst}), gradients(kOwnContext, kFirst, {g, g})}),
      arrival({kOwnContext, 1, {0, 1}, 3}, {x, g}),
      arrival({context, 0, {0}, 3}, {at::ones({2}, at::kComplexDouble), x}),
      arrival({context, 0, {1}, 3}, {x, whole}),
      arrival({context, 0, {0, 0}, 3}, {x}),
      arrival({context, 1, {2}, 3, lineage}, {x, x}),
      arrival({-1, 0, {}}, {}),
  };
}

const Fuzzer kAutogradFields("autograd_fields", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::autograd_fields_fuzz
