#include "treadle/train/ddp/distributed_data_parallel.h"

#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) { reducer_->suspend(); }

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

void broadcastState(torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<Future<void>> broadcasts;
  for (std::vector<at::Tensor> tensors : {module.parameters(), module.buffers()})
    for (at::Tensor& tensor : tensors) {
      // Not the parameter itself: its version counter must not move, nor autograd see a write to a leaf.
      at::Tensor data = tensor.variable_data();
      broadcasts.push_back(broadcast(group, data, 0));
    }
  // All are under way at once, in the same order on every rank.
  whenAll(std::move(broadcasts)).wait();
}

std::shared_ptr<Reducer> makeReducer(torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : module.parameters())
    // Frozen parameters never get a gradient; a bucket would wait for them until the end of each pass.
    if (parameter.requires_grad()) trained.push_back(parameter);
  return std::make_shared<Reducer>(std::move(trained), group, options.buckets);
}

}  // namespace treadle::ddp
