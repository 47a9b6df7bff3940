#include "treadle/train/ddp/replica_check.h"

#include <ATen/ops/empty_like.h>

#include <sstream>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/first_difference.h"
#include "treadle/train/ddp/hash128.h"
#include "treadle/train/ddp/named_tensors.h"

namespace treadle::ddp {
namespace {

// The rules for what ranks exchange in a pass, and in which order. Raise the number when they change.
constexpr const char* kRules = "version 5 of the rules of DistributedDataParallel";

// Their names in words are "parameter 'first'" and "buffer 'offset'".
std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module, bool buffers) {
  std::vector<NamedTensor> tensors = parametersOf(module);
  for (NamedTensor& parameter : tensors) parameter.names = "parameter " + parameter.names;
  if (!buffers) return tensors;
  for (NamedTensor& buffer : buffersOf(module)) {
    buffer.names = "buffer " + buffer.names;
    tensors.push_back(std::move(buffer));
  }
  return tensors;
}

// Leaves out those of dimensions of size 1, which are never used and may be any number.
std::vector<int64_t> usedStrides(const at::Tensor& tensor) {
  std::vector<int64_t> strides;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension)
    if (tensor.size(dimension) != 1) strides.push_back(tensor.stride(dimension));
  return strides;
}

std::string structureOf(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  tensor.layout() == at::kStrided ? text << " with strides " << at::IntArrayRef(usedStrides(tensor))
                                  : text << " " << tensor.layout();
  text << " on " << tensor.device() << (tensor.requires_grad() ? ", trained" : ", not trained");
  return text.str();
}

std::string hashOfValues(const NamedTensor& named) {
  if (!collective::isDenseOnCpu(named.tensor))
    raise(invalidArgument("the values of " + named.names + " cannot be compared: it is no dense tensor on the CPU"));
  return inHex(hashed({}, collective::bytesOf(collective::flatOf(named.tensor))));
}

}  // namespace

const char* nameOf(StartCheck start) {
  switch (start) {
    case StartCheck::kBroadcast: return "kBroadcast";
    case StartCheck::kVerifyValues: return "kVerifyValues";
    case StartCheck::kTrust: break;
  }
  return "kTrust";
}

void checkStructure(const torch::nn::Module& module, const ProcessGroup& group,
                    const std::vector<std::string>& settings) {
  std::vector<std::string> lines = {kRules};
  lines.insert(lines.end(), settings.begin(), settings.end());
  for (const NamedTensor& named : tensorsOf(module, /*buffers=*/true))
    lines.push_back(named.names + ": " + structureOf(named.tensor));
  if (auto difference = firstDifference(group, lines))
    raise(invalidArgument("the replicas of a DistributedDataParallel are not alike: " + *difference));
}

void checkValues(const torch::nn::Module& module, const ProcessGroup& group, bool buffers) {
  std::vector<std::string> lines;
  for (const NamedTensor& named : tensorsOf(module, buffers))
    lines.push_back(named.names + " with the hash " + hashOfValues(named) + " of its values");
  if (auto difference = firstDifference(group, lines))
    raise(failedPrecondition("the values of the replicas of a DistributedDataParallel differ: " + *difference));
}

void broadcastValues(const torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<Future<void>> broadcasts;
  const ProcessGroup chosen = byAnyAlgorithm(group);
  for (const NamedTensor& named : tensorsOf(module, /*buffers=*/true)) {
    // Not the parameter itself: its version counter must not move, nor autograd see a write to a leaf.
    at::Tensor data = named.tensor.variable_data();
    broadcasts.push_back(broadcast(chosen, data, 0));
  }
  // All are under way at once, in the same order on every rank.
  whenAll(std::move(broadcasts)).wait();
}

void receiveValues(const torch::nn::Module& module, const ProcessGroup& group, int source) {
  std::vector<at::Tensor> values, received;
  std::vector<Future<void>> broadcasts;
  const ProcessGroup chosen = byAnyAlgorithm(group);
  for (const NamedTensor& named : tensorsOf(module, /*buffers=*/true)) {
    values.push_back(named.tensor.variable_data());  // as in broadcastValues
    received.push_back(group.rank() == source ? values.back() : at::empty_like(values.back()));
    broadcasts.push_back(broadcast(chosen, received.back(), source));
  }
  whenAll(std::move(broadcasts)).wait();
  if (group.rank() == source) return;
  for (size_t i = 0; i < values.size(); ++i) values[i].copy_(received[i]);
}

void startValues(const torch::nn::Module& module, const ProcessGroup& group, StartCheck start) {
  switch (start) {
    case StartCheck::kBroadcast: return broadcastValues(module, group);
    case StartCheck::kVerifyValues: return checkValues(module, group, /*buffers=*/true);
    case StartCheck::kTrust: break;
  }
}

}  // namespace treadle::ddp
