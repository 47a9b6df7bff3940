#include "treadle/tensor/collective/collectives.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "treadle/core/base/error.h"
#include "treadle/core/base/hash.h"
#include "treadle/core/group/messages.h"
#include "treadle/tensor/collective/flat.h"

namespace treadle {
namespace {

using collective::bytesOf;
using collective::checkDense;
using collective::dataTypeOf;
using collective::flatOf;
using collective::memoryOf;
using collective::nameOf;
using collective::shapeOf;

// The tensor lives until the operation has ended. No `then`: its future would become ready on a thread of the pool,
// later than the operation.
Future<void> keeping(const at::Tensor& tensor, Future<void> done) {
  sharedStateOf(done)->onReady([tensor] {});
  return done;
}

// libtorch could not write to it element by element.
void checkHasRoom(const at::Tensor& output) {
  if (at::has_internal_overlap(output) == at::MemOverlap::Yes)
    raise(invalidArgument("an output of sizes " + collective::sizesTextOf(output) +
                          " has several elements in one place, as after expand(): give its clone()"));
}

// Runs `operate` on memory in one piece, which becomes the tensor's.
template <class Operate>
Future<void> onContiguous(at::Tensor& tensor, Operate operate) {
  const at::Tensor flat = flatOf(tensor);
  checkHasRoom(tensor);
  Future<void> done = operate(flat);
  if (flat.data_ptr() == tensor.data_ptr()) return keeping(flat, std::move(done));
  return done.then([flat, target = tensor.detach()]() mutable {
    // On a thread of the pool, whose grad mode is whatever its last handler left.
    at::NoGradGuard noGrad;
    target.copy_(flat);
  });
}

void checkSameType(const at::Tensor& input, const at::Tensor& output) {
  checkDense(output);
  if (input.scalar_type() != output.scalar_type())
    raise(invalidArgument(std::string("the input's dtype is ") + c10::toString(input.scalar_type()) +
                          " and the output's " + c10::toString(output.scalar_type())));
}

// The same with an input, which is read in one piece and lives until the operation has ended.
template <class Operate>
Future<void> onContiguous(const at::Tensor& input, at::Tensor& output, Operate operate) {
  const at::Tensor from = flatOf(input);
  checkSameType(input, output);
  return keeping(from, onContiguous(output, [&](const at::Tensor& to) { return operate(from, to); }));
}

// "float32 [2, 3] [4]": what all members of an all-gather have; a hash of the sizes where they are too long.
std::string shapesOf(const std::vector<at::Tensor>& tensors) {
  const std::string type = nameOf(tensors.front().scalar_type());
  std::string text = type;
  for (const at::Tensor& tensor : tensors) text += " " + collective::sizesTextOf(tensor);
  if (text.size() <= group::kMostShapeBytes) return text;
  return type + " in sizes with the hash " + std::to_string(base::fnv1a(text));
}

// Stands for an undefined tensor.
at::Tensor orNone(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() ? tensor : at::empty({0}, like.options());
}

// The bytes of each of the tensors, one for each member.
std::vector<uint64_t> sizesOf(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != static_cast<size_t>(group.size()))
    raise(invalidArgument(std::to_string(tensors.size()) + " tensors were given in a group of " +
                          std::to_string(group.size()) + " members"));
  std::vector<uint64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    checkSameType(tensors.front(), tensor);
    sizes.push_back(tensor.nbytes());
  }
  return sizes;
}

// There is a part for each member, of as many elements.
void checkParts(const ProcessGroup& group, const at::Tensor& flat) {
  if (flat.numel() % group.size() != 0)
    raise(invalidArgument(std::to_string(flat.numel()) + " elements cannot be cut into parts for " +
                          std::to_string(group.size()) + " members"));
}

// As large as all of the tensors.
at::Tensor emptyFor(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return at::empty({count}, tensors.front().options());
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(flatOf(tensor).flatten());
  return at::cat(flat);
}

// What the operation writes to `all` becomes the outputs.
Future<void> cutInto(std::vector<at::Tensor>& outputs, const at::Tensor& all, Future<void> done) {
  std::vector<at::Tensor> targets;
  for (const at::Tensor& output : outputs) targets.push_back(output.detach());
  return done.then([all, targets] {
    at::NoGradGuard noGrad;
    int64_t first = 0;
    for (const at::Tensor& target : targets) {
      target.copy_(all.narrow(0, first, target.numel()).view(target.sizes()));
      first += target.numel();
    }
  });
}

}  // namespace

Future<void> allReduce(const ProcessGroup& group, at::Tensor& tensor, ReduceOp op) {
  return onContiguous(tensor, [&](const at::Tensor& flat) {
    return group::allReduce(group.withShape(shapeOf(flat)), flat.data_ptr(), static_cast<size_t>(flat.numel()),
                            dataTypeOf(flat.scalar_type()), op);
  });
}

Future<void> pushPull(const ProcessGroup& group, std::string_view name, at::Tensor& tensor, PushPullOptions options) {
  return onContiguous(tensor, [&](const at::Tensor& flat) {
    options.shape.assign(flat.sizes().begin(), flat.sizes().end());
    return group::pushPull(group, name, flat.data_ptr(), static_cast<size_t>(flat.numel()),
                           dataTypeOf(flat.scalar_type()), std::move(options));
  });
}

Future<void> reduce(const ProcessGroup& group, at::Tensor& tensor, int root, ReduceOp op) {
  const auto start = [&](const at::Tensor& flat) {
    return group::reduce(group.withShape(shapeOf(flat)), bytesOf(flat), memoryOf(flat), dataTypeOf(flat.scalar_type()),
                         root, op);
  };
  if (group.rank() == root) return onContiguous(tensor, start);
  const at::Tensor flat = flatOf(tensor);
  return keeping(flat, start(flat));
}

Future<void> reduceScatter(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output, ReduceOp op) {
  return onContiguous(input, output, [&](const at::Tensor& from, const at::Tensor& to) {
    return group::reduceScatter(group.withShape(shapeOf(from)), bytesOf(from), memoryOf(to),
                                dataTypeOf(to.scalar_type()), op);
  });
}

Future<void> allGather(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output) {
  return onContiguous(input, output, [&](const at::Tensor& from, const at::Tensor& to) {
    return group::allGather(group.withShape(shapeOf(from)), bytesOf(from), memoryOf(to));
  });
}

Future<void> gather(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output, int root) {
  checkDense(input);
  at::Tensor into = orNone(output, input);
  return onContiguous(input, into, [&](const at::Tensor& from, const at::Tensor& to) {
    return group::gather(group.withShape(shapeOf(from)), bytesOf(from), memoryOf(to), root);
  });
}

Future<void> scatter(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output, int root) {
  checkDense(output);
  return onContiguous(orNone(input, output), output, [&](const at::Tensor& from, const at::Tensor& to) {
    return group::scatter(group.withShape(shapeOf(to)), bytesOf(from), memoryOf(to), root);
  });
}

Future<void> allToAll(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output) {
  return onContiguous(input, output, [&](const at::Tensor& from, const at::Tensor& to) {
    checkParts(group, from);
    checkParts(group, to);
    return group::allToAll(group.withShape(shapeOf(from)), bytesOf(from), memoryOf(to));
  });
}

Future<void> allGather(const ProcessGroup& group, const at::Tensor& input, std::vector<at::Tensor>& outputs) {
  const std::vector<uint64_t> sizes = sizesOf(group, outputs);
  checkSameType(input, outputs.front());
  for (const at::Tensor& output : outputs) checkHasRoom(output);
  const at::Tensor from = flatOf(input), all = emptyFor(outputs);
  return keeping(
      from,
      cutInto(outputs, all, group::allGather(group.withShape(shapesOf(outputs)), bytesOf(from), memoryOf(all), sizes)));
}

Future<void> allToAll(const ProcessGroup& group, const std::vector<at::Tensor>& inputs,
                      std::vector<at::Tensor>& outputs) {
  const std::vector<uint64_t> sent = sizesOf(group, inputs), received = sizesOf(group, outputs);
  checkSameType(inputs.front(), outputs.front());
  for (const at::Tensor& output : outputs) checkHasRoom(output);
  const at::Tensor from = joined(inputs), all = emptyFor(outputs);
  return keeping(from, cutInto(outputs, all,
                               group::allToAll(group.withShape(nameOf(from.scalar_type())), bytesOf(from),
                                               memoryOf(all), sent, received)));
}

Future<void> broadcast(const ProcessGroup& group, at::Tensor& tensor, int root) {
  return onContiguous(tensor, [&](const at::Tensor& flat) {
    return group::broadcast(group.withShape(shapeOf(flat)), memoryOf(flat), root);
  });
}

Future<void> send(const ProcessGroup& group, const at::Tensor& tensor, int to) {
  const at::Tensor flat = flatOf(tensor);
  return keeping(flat, group::send(group.withShape(shapeOf(flat)), bytesOf(flat), to));
}

Future<void> recv(const ProcessGroup& group, at::Tensor& tensor, int from) {
  return onContiguous(tensor, [&](const at::Tensor& flat) {
    return group::recv(group.withShape(shapeOf(flat)), memoryOf(flat), from);
  });
}

}  // namespace treadle
