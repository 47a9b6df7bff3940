#pragma once
// The float32 memory in which 16-bit floats are reduced by an algorithm whose partial results travel: converted when
// the operation begins to move data, and rounded once at its end.

#include <memory>
#include <string>

#include "treadle/core/group/data_type.h"
#include "treadle/core/group/staging.h"

namespace treadle::group {

class WideStaging final : public Staging {
 public:
  // Of 16-bit floats at `input`; the result goes to `output`, which is the input or lies elsewhere. With `inner` both
  // lie in its memory. `owner`: whose memory it is, for messages.
  WideStaging(DataType type, Bytes input, MutableBytes output, std::shared_ptr<Staging> inner, std::string owner);

  // Fails as `inner` does, or with ResourceExhausted.
  Result<Staged> fill() override;
  void putBack() override;

 private:
  const DataType type_;
  Bytes input_;
  MutableBytes output_;
  const std::shared_ptr<Staging> inner_;
  const std::string owner_;
  Buffer memory_;
  Bytes result_;  // in the memory
};

}  // namespace treadle::group
