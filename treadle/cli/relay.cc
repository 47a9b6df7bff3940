#include "treadle/cli/relay.h"

#include <array>
#include <cerrno>

namespace treadle::cli {

Relay::~Relay() {
  for (auto& source : sources_)
    if (source->pipe.valid()) reactor_.remove(source->pipe.get());
}

Status Relay::add(int rank, Stream stream, io::Fd pipe) {
  sources_.push_back(std::make_unique<Source>(Source{rank, stream, std::move(pipe), {}}));
  ++open_;
  return watch(*sources_.back());
}

Status Relay::watch(Source& source) {
  return reactor_.add(source.pipe.get(), EPOLLIN, std::make_shared<OnEvents>([this, &source] { onReadable(source); }));
}

void Relay::onReadable(Source& source) {
  // An event of this round of the reactor may come after a pause that another event of it brought about.
  if (paused_ || !source.pipe.valid()) return;
  if (readSome(source) == ReadResult::kEnd) close(source);
  console_.flush();
  if (console_.congested()) pause();
}

// One read, so that a worker that writes without pause does not keep the others waiting.
Relay::ReadResult Relay::readSome(Source& source) {
  std::array<char, 64 * 1024> bytes;
  ssize_t size;
  do size = ::read(source.pipe.get(), bytes.data(), bytes.size());
  while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return ReadResult::kNothing;
  if (size <= 0) return ReadResult::kEnd;
  lines_.clear();
  source.splitter.feed({bytes.data(), static_cast<size_t>(size)}, lines_);
  for (const std::string& line : lines_) console_.line(source.stream, source.rank, line);
  console_.unfinished(source.stream, source.rank, source.splitter.unfinished());
  return ReadResult::kData;
}

// Pipes leave the reactor: one that its writer closed would be reported again and again, whatever we ask for.
void Relay::pause() {
  paused_ = true;
  for (auto& source : sources_)
    if (source->pipe.valid()) reactor_.remove(source->pipe.get());
}

void Relay::resume() {
  if (!paused_ || console_.congested()) return;
  paused_ = false;
  // A pipe that was watched before can be watched again: the set has room for it.
  for (auto& source : sources_)
    if (source->pipe.valid()) watch(*source).ignore();
}

void Relay::close(Source& source) {
  std::string rest = source.splitter.takeUnfinished();
  if (!rest.empty()) console_.line(source.stream, source.rank, rest);
  reactor_.remove(source.pipe.get());
  source.pipe.reset();
  --open_;
}

void Relay::finish() {
  // A pipe holds 64 KiB unless its owner made it larger, at most 1 MiB: what is more is being written right
  // now, by somebody who is none of ours.
  constexpr int kMostReads = 16;
  for (auto& source : sources_) {
    if (!source->pipe.valid()) continue;
    for (int i = 0; i < kMostReads && readSome(*source) == ReadResult::kData; ++i) {}
    close(*source);
  }
  console_.flush();
}

}  // namespace treadle::cli
