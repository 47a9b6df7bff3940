#include "treadle/train/ddp/use_marks.h"

namespace treadle::ddp {

const char* nameOf(UnusedParameters mode) { return mode == UnusedParameters::kPerPass ? "kPerPass" : "kStatic"; }

UseMarks::UseMarks(const ParameterList& list, UnusedParameters mode)
    : list_(list), mustLearn_(mode == UnusedParameters::kStatic), isSent_(list.trained().size(), true) {}

Status UseMarks::check(const ExactChannel& channel) const {
  for (size_t index = 0; index < isSent_.size(); ++index)
    if (!isSent_[index] && channel.used(index))
      return failedPrecondition(
          "parameter " + list_.nameOf(index) +
          " has got a gradient, and no rank had used it in the first averaged pass, which decides "
          "(UnusedParameters::kStatic): use kPerPass, or make it a part of every loss");
  return {};
}

bool UseMarks::learn(const ExactChannel& channel) {
  if (!mustLearn_ || !channel.anyUsed()) return false;
  mustLearn_ = false;
  bool areFewer = false;
  for (size_t index = 0; index < isSent_.size(); ++index) {
    isSent_[index] = channel.used(index);
    areFewer = areFewer || !isSent_[index];
  }
  return areFewer;
}

}  // namespace treadle::ddp
