#include "treadle/train/ddp/asynchronous_parameters.h"

#include <ATen/ATen.h>

#include <exception>
#include <new>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/summation_tensors.h"

namespace treadle {
namespace {

SummationOptions asynchronous(SummationOptions options) {
  options.asynchronous = true;
  return options;
}

at::Tensor onCpu(const at::Tensor& parameter) { return parameter.detach().to(at::kCPU); }

}  // namespace

AsynchronousParameters::AsynchronousParameters(summation::Job& worker, const torch::nn::Module& module,
                                               SummationOptions options)
    : list_(module, "AsynchronousParameters"),
      service_(SummationService::make(worker, asynchronous(std::move(options)), ddp::summationTensorsOf(list_))) {
  orFail([this] {
    if (list_.trained().empty()) raise(invalidArgument("no parameter of the module requires a gradient"));
    for (const at::Tensor& parameter : list_.trained()) {
      const at::Tensor here = onCpu(parameter);
      latest_.push_back(at::empty(here.sizes(), here.options()));
      service_.isFirst() ? latest_.back().copy_(here) : latest_.back().zero_().neg_();  // -0 changes no bit of a sum
    }
    sumAndTake();
  });
}

// The service lives until all workers have left it.
AsynchronousParameters::~AsynchronousParameters() {
  try {
    const bool isUnwinding = std::uncaught_exceptions() > exceptions_;
    isUnwinding ? service_.fail(cancelled("an exception has ended its training")) : void(service_.leave());
    sharedStateOf(service_.ended())->onReady([service = service_, memory = latest_] {});
  } catch (const std::bad_alloc&) {  // then it fails
  }
}

// After a failure the sums may not have ended yet, or there was no memory to end them.
void AsynchronousParameters::exchange() {
  if (hasFailed_) {
    service_.fail(cancelled("asynchronous training has failed here"));
    service_.ended().wait();
  }
  orFail([this] {
    throwIfError(list_.checkUnchanged());
    for (size_t i = 0; i < latest_.size(); ++i) {
      const at::Tensor& parameter = list_.trained()[i];
      if (parameter.sizes() != latest_[i].sizes())
        raise(failedPrecondition(list_.nameOf(i) + " has become " + collective::shapeOf(parameter) + ", and was " +
                                 collective::shapeOf(latest_[i])));
    }
    for (size_t i = 0; i < latest_.size(); ++i) at::sub_out(latest_[i], onCpu(list_.trained()[i]), latest_[i]);
    sumAndTake();
  });
}

void AsynchronousParameters::sumAndTake() {
  const at::NoGradGuard noGrad;
  std::vector<Future<void>> sums;
  for (size_t i = 0; i < latest_.size(); ++i)
    sums.push_back(service_.sum(list_.trainedNames()[i], collective::memoryOf(latest_[i]),
                                collective::dataTypeOf(latest_[i].scalar_type())));
  whenAll(std::move(sums)).wait();
  for (size_t i = 0; i < latest_.size(); ++i) {
    at::Tensor parameter = list_.trained()[i];
    parameter.copy_(latest_[i]);
  }
}

template <class F>
void AsynchronousParameters::orFail(F f) try {
  f();
} catch (...) {
  hasFailed_ = true;
  service_.fail(statusOfCurrentException("asynchronous training"));
  throw;
}

}  // namespace treadle
