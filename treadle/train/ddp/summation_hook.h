#pragma once
// Averages gradients by a summation service of the ranks and servers (AverageBy::kService). Each parameter is a tensor
// of the service, so that its sums do not depend on the plan of buckets. Among ranks of one host they are made as they
// come, whatever is urgent. A rank divides its gradients by the number of ranks before it sends them, so
// those of 16 bits are rounded twice, once more where ranks share a host, and what is below the smallest number of
// float16 is lost.
//
// Used as CommHook says. The service and the group fail together, each with the reason of the other: what one of them
// waits for may never come once the other has failed.

#include <string>
#include <vector>

#include "treadle/core/summation/service.h"
#include "treadle/train/ddp/comm_hook.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle {
struct DdpOptions;
}  // namespace treadle

namespace treadle::ddp {

// Every rank of the group calls it, with the same arguments. Waits for all, with the group's timeout. Throws what
// SummationService::make throws.
SummationService makeGradientService(const ProcessGroup& group, const ParameterList& list,
                                     const std::vector<std::string>& servers, const DdpOptions& options);

class SummationHook final : public CommHook {
 public:
  // `service` was made by makeGradientService with the same arguments.
  SummationHook(const ProcessGroup& group, const ParameterList& list, SummationService service,
                std::vector<std::string> servers, const Compression& compression);
  // This rank makes no more sums; those of the other ranks that are under way end.
  ~SummationHook() override;

  std::string description() const override;
  Reduction reduce(Exchange& exchange, const Bucket& bucket) override;
  bool isByGroup() const override { return false; }

 private:
  Future<void> sum(size_t parameter, const at::Tensor& gradient);

  const ProcessGroup group_;
  const std::vector<std::string> servers_, names_;  // names of the parameters
  const Compression compression_;
  SummationService service_;
  uint64_t onServiceEnded_ = 0, onGroupEnded_ = 0;  // continuations of their ends
  std::vector<Future<void>> sums_;                  // the last one of each parameter
};

}  // namespace treadle::ddp
