#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "treadle/core/base/error.h"
#include "treadle/core/group/sparse.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/tensor/collective/flat.h"

namespace treadle {
namespace {

// What the input and the result have in common.
struct CooForm {
  explicit CooForm(const at::Tensor& tensor) : sizes(tensor.sizes().vec()), options(tensor.options()) {
    shape.sizes.assign(sizes.begin(), sizes.end());
    shape.sparseDims = static_cast<size_t>(tensor.sparse_dim());
  }

  std::vector<int64_t> valueSizes(int64_t rows) const {
    std::vector<int64_t> all = {rows};
    all.insert(all.end(), sizes.begin() + static_cast<ptrdiff_t>(shape.sparseDims), sizes.end());
    return all;
  }

  group::SparseShape shape;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

void checkCoo(const at::Tensor& tensor) {
  const bool isCoo = tensor.defined() && tensor.layout() == at::kSparse && tensor.device().is_cpu();
  if (!isCoo) raise(invalidArgument("sparseAllReduce takes sparse tensors (COO) on the CPU"));
}

// The row-major numbers of the rows. Kernels trust indices, and tensors can be made without a check.
std::vector<uint64_t> rowsOf(const at::Tensor& indices, const CooForm& form) {
  const at::Tensor flat = indices.contiguous();
  const int64_t* const all = flat.const_data_ptr<int64_t>();
  const auto count = static_cast<size_t>(flat.size(1));
  std::vector<uint64_t> rows(count);
  for (size_t dim = 0; dim < form.shape.sparseDims; ++dim)
    for (size_t i = 0; i < count; ++i) {
      const int64_t index = all[dim * count + i], size = form.sizes[dim];
      if (index < 0 || index >= size)
        raise(invalidArgument("the index " + std::to_string(index) + " in dimension " + std::to_string(dim) +
                              " is outside of " + form.shape.text()));
      rows[i] = rows[i] * static_cast<uint64_t>(size) + static_cast<uint64_t>(index);
    }
  return rows;
}

at::Tensor indicesOf(std::vector<uint64_t> rows, const CooForm& form) {
  const size_t count = rows.size();
  at::Tensor indices = at::empty({static_cast<int64_t>(form.shape.sparseDims), static_cast<int64_t>(count)}, at::kLong);
  int64_t* const all = indices.mutable_data_ptr<int64_t>();
  for (size_t dim = form.shape.sparseDims; dim-- > 0;)
    for (size_t i = 0; i < count; ++i) {
      all[dim * count + i] = static_cast<int64_t>(rows[i] % form.shape.sizes[dim]);
      rows[i] /= form.shape.sizes[dim];
    }
  return indices;
}

at::Tensor tensorOf(const group::RowSums& sums, const CooForm& form) {
  std::vector<uint64_t> rows(sums.rows());
  const at::Tensor values =
      at::empty(form.valueSizes(static_cast<int64_t>(rows.size())), form.options.layout(at::kStrided));
  sums.copyTo(rows, collective::memoryOf(values));
  return at::_sparse_coo_tensor_unsafe(indicesOf(std::move(rows), form), values, form.sizes, form.options,
                                       /*is_coalesced=*/true);
}

}  // namespace

Future<at::Tensor> sparseAllReduce(const ProcessGroup& group, const at::Tensor& input, ReduceOp op) {
  checkCoo(input);
  const at::NoGradGuard noGrad;
  const CooForm form(input);
  const at::Tensor values = collective::flatOf(input._values());
  const auto sums = std::make_shared<group::RowSums>();
  throwIfError(form.shape.validate());
  Future<void> done =
      group::sparseAllReduce(group, form.shape, rowsOf(input._indices(), form), collective::bytesOf(values),
                             collective::dataTypeOf(values.scalar_type()), *sums, op);
  // On a thread of the pool, whose grad mode is whatever its last handler left.
  return done.then([sums, form] {
    const at::NoGradGuard noGradHere;
    return tensorOf(*sums, form);
  });
}

}  // namespace treadle
