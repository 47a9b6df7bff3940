#include "treadle/core/summation/meeting.h"

#include <algorithm>
#include <set>
#include <string>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/summation/service_messages.h"
#include "treadle/core/summation/shares.h"

namespace treadle::summation {

using group::ProcessGroup;

namespace {

std::string inWords(const Packing& packing) {
  if (packing.form == Compression::Form::kNone) return {};
  if (packing.form == Compression::Form::kTopK) return " as 16 of " + std::to_string(packing.chunkElements);
  return std::string(" as ") + nameOf(packing.form);
}

std::string inWords(const Declaration::Tensor& tensor) {
  return "'" + tensor.name + "', " + std::to_string(tensor.dataBytes() / sizeOf(tensor.type)) + " " +
         std::string(nameOf(tensor.type)) + inWords(tensor.packing);
}

Result<Packing> packingOf(const SummationTensor& tensor, const Compression& compression) {
  const bool canBe = tensor.type == group::DataType::kFloat32;
  if (!tensor.compression) return canBe ? Packing::of(compression, tensor.elements) : Packing();
  TREADLE_RETURN_IF_ERROR(tensor.compression->validate().withContext("'" + tensor.name + "'"));
  if (!canBe && tensor.compression->form != Compression::Form::kNone)
    return invalidArgument("'" + tensor.name + "' is of " + std::string(nameOf(tensor.type)) +
                           "; only float32 can be compressed");
  return Packing::of(*tensor.compression, tensor.elements);
}

Result<std::vector<Declaration::Tensor>> declaredTensors(const std::vector<SummationTensor>& tensors,
                                                         const Compression& compression) {
  std::vector<Declaration::Tensor> declared;
  std::set<std::string_view> names;
  for (const SummationTensor& tensor : tensors) {
    if (tensor.name.empty() || tensor.name.size() > kMostNameBytes)
      return invalidArgument("a tensor of a summation service has a name of 1 to " + std::to_string(kMostNameBytes) +
                             " bytes");
    if (!names.insert(tensor.name).second)
      return invalidArgument("two tensors of a summation service are called '" + tensor.name + "'");
    if (tensor.elements > UINT64_MAX / sizeOf(tensor.type))
      return invalidArgument("'" + tensor.name + "' is too large");
    const Result<Packing> packing = packingOf(tensor, compression);
    if (!packing.ok()) return packing.status();
    const uint64_t bytes = packing->isPacked() ? packing->bytes() : tensor.elements * sizeOf(tensor.type);
    declared.push_back({tensor.type, bytes, tensor.name, *packing});
  }
  return declared;
}

SumMode modeOf(const SummationOptions& options) {
  return {options.asynchronous, options.staleness.value_or(SumMode::kAnyStaleness)};
}

std::string inWords(const SumMode& mode) {
  if (!mode.isAsynchronous) return "a synchronous service";
  if (mode.staleness == SumMode::kAnyStaleness) return "an asynchronous service of any staleness";
  return "an asynchronous service of staleness " + std::to_string(mode.staleness);
}

// The first difference between what two workers declare.
Status compare(const std::vector<Declaration::Tensor>& own, SumMode ownMode, const std::string& ownName,
               const Declaration& declared, const std::string& otherName) {
  if (ownMode != declared.mode)
    return invalidArgument(ownName + " makes " + inWords(ownMode) + ", and " + otherName + " " +
                           inWords(declared.mode));
  const std::vector<Declaration::Tensor>& others = declared.tensors;
  if (own.size() != others.size())
    return invalidArgument(ownName + " declares " + std::to_string(own.size()) + " tensors, and " + otherName + " " +
                           std::to_string(others.size()));
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i] != others[i])
      return invalidArgument("tensor " + std::to_string(i) + " is declared by " + ownName + " as " + inWords(own[i]) +
                             ", and by " + otherName + " as " + inWords(others[i]));
  return {};
}

}  // namespace

Bandwidths bandwidthsOf(const SummationOptions& options) {
  if (options.bandwidths.empty()) return Bandwidths::even(options.workers.size(), options.servers.size(), 1);
  const auto servers = options.bandwidths.begin() + static_cast<std::ptrdiff_t>(options.workers.size());
  return {{options.bandwidths.begin(), servers}, {servers, options.bandwidths.end()}};
}

Declaration Meeting::agree(const SummationOptions& options, const std::vector<SummationTensor>& tensorsHere) const {
  const size_t workers = options.workers.size();
  const auto self = static_cast<size_t>(group_.rank());
  if (self >= workers && !tensorsHere.empty())
    raise(invalidArgument(options.servers[self - workers] + " is a server of the summation service and has tensors"));
  const std::vector<Declaration::Tensor> tensors = valueOrThrow(declaredTensors(tensorsHere, options.compression));
  const bool isCompressed = std::ranges::any_of(tensors, [](const auto& one) { return one.packing.isPacked(); });
  if (options.asynchronous && isCompressed) raise(asynchronousAndCompressed());
  if (options.asynchronous && workers > kMostVersionWorkers)
    raise(invalidArgument("an asynchronous summation service has " + std::to_string(workers) + " workers; at most " +
                          std::to_string(kMostVersionWorkers) + " are possible (SummationOptions::workers)"));
  std::vector<std::byte> first;
  if (self == 0) {
    Declaration own =
        valueOrThrow(Declaration::of(tensors, serviceShares(bandwidthsOf(options), options.asynchronous)));
    own.mode = modeOf(options);
    first = encode(own);
  }
  barrier(inTime()).wait();
  Declaration declaration =
      valueOrThrow(parseDeclaration(ofFirst(std::move(first)), workers, static_cast<size_t>(group_.size())));
  if (self < workers)
    throwIfError(compare(tensors, modeOf(options), options.workers[self], declaration, options.workers.front()));
  barrier(inTime()).wait();  // or the difference on another machine
  return declaration;
}

void Meeting::connect(const Services& services, Participant& participant, const ProcessGroup& workers) const {
  const auto dial = [&](int rank) { return services.dial(rank, group_.core().link().group(), deadline_); };
  participant.dialOthers(dial, deadline_);
  participant.awaitDialers(deadline_);
  if (workers.valid()) barrier(inTime(workers)).wait();  // all are connected
}

ProcessGroup Meeting::inTime(const ProcessGroup& group) const {
  if (deadline_ == kNever) return group;
  return group.withTimeout(std::max<Duration>(deadline_ - Clock::now(), std::chrono::milliseconds(1)));
}

std::vector<std::byte> Meeting::ofFirst(std::vector<std::byte> bytes) const {
  uint64_t size = bytes.size();
  broadcast(inTime(), std::span(&size, 1), 0).wait();
  if (size > kMostDeclarationBytes)
    raise(resourceExhausted("the tensors of a summation service are too many to declare"));
  bytes.resize(size);
  broadcast(inTime(), MutableBytes(bytes), 0).wait();
  return bytes;
}

}  // namespace treadle::summation
