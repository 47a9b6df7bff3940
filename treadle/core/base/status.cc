#include "treadle/core/base/status.h"

#include <array>

namespace treadle {
namespace {

constexpr std::array<std::string_view, 11> kCodeNames = {"OK",
                                                         "Cancelled",
                                                         "DeadlineExceeded",
                                                         "PeerLost",
                                                         "ResourceExhausted",
                                                         "InvalidArgument",
                                                         "FailedPrecondition",
                                                         "NotFound",
                                                         "DataLoss",
                                                         "Unauthenticated",
                                                         "Internal"};

const std::string kEmpty;
const std::vector<std::string> kNobody;

constexpr size_t kLongestTrail = 1024;

}  // namespace

std::string_view codeName(Code code) {
  auto index = static_cast<size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "Unknown";
}

bool isCode(unsigned char value) { return value < kCodeNames.size(); }

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) rep_ = std::make_unique<Rep>(Rep{code, std::move(message), {}, {}, {}, {}});
}

Status::Status(const Status& other) : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
  return *this;
}

const std::string& Status::message() const { return rep_ ? rep_->message : kEmpty; }
const std::string& Status::worker() const { return rep_ ? rep_->worker : kEmpty; }
const std::string& Status::function() const { return rep_ ? rep_->function : kEmpty; }
const std::string& Status::remoteType() const { return rep_ ? rep_->remoteType : kEmpty; }
const std::vector<std::string>& Status::trail() const { return rep_ ? rep_->trail : kNobody; }

Status Status::withWorker(std::string worker) && {
  if (rep_) rep_->worker = std::move(worker);
  return std::move(*this);
}

Status Status::withFunction(std::string function) && {
  if (rep_) rep_->function = std::move(function);
  return std::move(*this);
}

Status Status::withRemoteType(std::string type) && {
  if (rep_) rep_->remoteType = std::move(type);
  return std::move(*this);
}

Status Status::withTrail(std::vector<std::string> trail) && {
  if (trail.size() > kLongestTrail) trail.resize(kLongestTrail);
  if (rep_) rep_->trail = std::move(trail);
  return std::move(*this);
}

Status Status::comingThrough(std::string worker) && {
  if (rep_ && rep_->trail.size() < kLongestTrail) rep_->trail.push_back(std::move(worker));
  return std::move(*this);
}

Status Status::withContext(std::string_view context) const {
  Status told = *this;
  if (told.rep_) told.rep_->message = std::string(context) + ": " + told.rep_->message;
  return told;
}

std::string Status::toString() const {
  if (ok()) return "OK";
  return std::string(codeName(code())) + ": " + message();
}

Status cancelled(std::string message) { return {Code::kCancelled, std::move(message)}; }
Status deadlineExceeded(std::string message) { return {Code::kDeadlineExceeded, std::move(message)}; }
Status peerLost(std::string worker, std::string message) {
  return Status(Code::kPeerLost, std::move(message)).withWorker(std::move(worker));
}
Status resourceExhausted(std::string message) { return {Code::kResourceExhausted, std::move(message)}; }
Status invalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
Status failedPrecondition(std::string message) { return {Code::kFailedPrecondition, std::move(message)}; }
Status notFound(std::string message) { return {Code::kNotFound, std::move(message)}; }
Status dataLoss(std::string message) { return {Code::kDataLoss, std::move(message)}; }
Status unauthenticated(std::string message) { return {Code::kUnauthenticated, std::move(message)}; }
Status internalError(std::string message) { return {Code::kInternal, std::move(message)}; }

}  // namespace treadle
