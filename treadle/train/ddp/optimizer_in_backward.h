#pragma once
// An optimizer of the program that steps within averaged passes, or after them when the next forward pass asks for it
// (DdpOptions::overlapForward): once all ranks have all gradients, the parameters of
// each bucket when their averages are there, while those of later buckets are on their way. torch has
// _apply_optimizer_in_backward for that, with an optimizer object for each parameter; here one is enough, because
// libtorch's optimizers step the parameters that have a gradient.
//
// Owned by a reducer; used on the thread that ends a pass or runs the next forward, without locks.

#include <memory>
#include <string>
#include <vector>

#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/parameter_list.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace treadle::ddp {

class OptimizerInBackward {
 public:
  // Null: there is none. `list` outlives it. ArgumentError: a parameter of the optimizer is none of the list, or is
  // there twice; LBFGS, whose step evaluates the model several times.
  OptimizerInBackward(std::shared_ptr<torch::optim::Optimizer> optimizer, const ParameterList& list);
  ~OptimizerInBackward();

  // Its class and its trained parameters, group by group, which must be the same on all ranks, line by line.
  static std::vector<std::string> linesOf(const torch::optim::Optimizer* optimizer, const ParameterList& list);
  // A line for each of its groups, with its options if these are of a class of libtorch. They must be the same on all
  // ranks that have made as many steps.
  static std::vector<std::string> optionLinesOf(const torch::optim::Optimizer* optimizer);

  bool exists() const { return optimizer_ != nullptr; }
  // FailedPrecondition: the pass is distributed, so gradients are in a context; or the optimizer has other parameters
  // than when this was made.
  Status checkMayStep(bool isDistributed) const;
  // InvalidArgument: its step would fail at an average, by the layout that the channel shows and that of what the
  // optimizer keeps of earlier steps, which are the same on all ranks. That would leave parameters of earlier buckets
  // stepped. What optimizers of a program's own do is not known.
  Status checkMayStep(const ExactChannel& channel) const;

  // Keeps copies of the options of its groups, by which the steps are made from here on until forgetOptions(): those of
  // classes of libtorch. A program may change the options meanwhile.
  void keepOptions();
  void forgetOptions();

  // Makes `.grad` of all of its parameters undefined, of frozen ones too, as no gradient but an average may be stepped.
  void clearGradients();
  // Whether it has all trained parameters.
  bool stepsAll() const;
  // Whether it has one of these trained parameters.
  bool steps(const std::vector<size_t>& parameters) const;
  // The averages of some trained parameters are in `.grad`. Steps those of them that the optimizer has, and makes their
  // `.grad` undefined. Not OK: what the optimizer throws.
  Status step(const std::vector<size_t>& parameters);

 private:
  void swapOptions();

  const std::shared_ptr<torch::optim::Optimizer> optimizer_;
  const ParameterList& list_;
  std::vector<at::Tensor> parameters_;                                 // when this was made
  std::vector<bool> isStepped_;                                        // by trained parameter
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> kept_;  // by group; empty: none
};

}  // namespace treadle::ddp
