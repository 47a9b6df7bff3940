#include "treadle/train/ddp/distributed_data_parallel.h"

#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) { reducer_->suspend(); }

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

void broadcastState(torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::vector<Future<void>> broadcasts;
  // Two broadcasts into one tensor would write it at the same time.
  for (const at::Tensor& tensor : eachOnce(tensors)) {
    // Not the parameter itself: its version counter must not move, nor autograd see a write to a leaf.
    at::Tensor data = tensor.variable_data();
    broadcasts.push_back(broadcast(group, data, 0));
  }
  // All are under way at once, in the same order on every rank.
  whenAll(std::move(broadcasts)).wait();
}

std::shared_ptr<Reducer> makeReducer(torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options) {
  return std::make_shared<Reducer>(ParameterList(module), group, options.buckets);
}

}  // namespace treadle::ddp
