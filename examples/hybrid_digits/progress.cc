#include "examples/hybrid_digits/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace hybrid {
namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[160];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string bar(int64_t done, int64_t total, size_t width) {
  size_t filled = total > 0 ? static_cast<size_t>(done) * width / static_cast<size_t>(total) : 0;
  std::string text(std::min(filled, width), '=');
  if (text.size() < width) text += '>';
  text.resize(width, ' ');
  return text;
}

std::string numbers(double loss, double accuracy, double stepsPerS) {
  return format("loss %.3f  accuracy %.3f  %.0f steps/s", loss, accuracy, stepsPerS);
}

}  // namespace

Progress::Style Progress::styleOfStandardOutput() {
  const char* told = std::getenv("TREADLE_TERMINAL");
  bool shown = isatty(STDOUT_FILENO) == 1 || (told != nullptr && std::string_view(told) == "1");
  return shown ? Style::kBar : Style::kLines;
}

Progress::Progress(std::ostream& out, Style style, int64_t epochs, int64_t stepsPerEpoch)
    : out_(out), style_(style), epochs_(epochs), stepsPerEpoch_(stepsPerEpoch) {}

Progress::~Progress() {
  if (drawn_ > 0) out_ << std::endl;
}

void Progress::step(int64_t epoch, int64_t step, double loss) {
  if (style_ != Style::kBar) return;
  auto now = std::chrono::steady_clock::now();
  if (now < nextDraw_) return;
  nextDraw_ = now + kRedrawEvery;
  draw(epoch, step, loss);
}

void Progress::epochDone(const EpochMetrics& metrics) {
  last_ = metrics;
  if (style_ == Style::kBar) {
    draw(metrics.epoch, stepsPerEpoch_, metrics.loss);
    return;
  }
  out_ << format("epoch %2lld/%lld  ", static_cast<long long>(metrics.epoch), static_cast<long long>(epochs_))
       << numbers(metrics.loss, metrics.accuracy, metrics.stepsPerS) << std::endl;
}

// As wide as leaves room for a launcher's prefix on a line of 80: a bar that wraps cannot be redrawn in
// place.
void Progress::draw(int64_t epoch, int64_t step, double loss) {
  constexpr size_t kColumns = 75, kWidestBar = 20, kNarrowestBar = 2;
  std::string before = format("epoch %2lld/%lld [", static_cast<long long>(epoch), static_cast<long long>(epochs_));
  std::string after = "] " + (last_ ? numbers(loss, last_->accuracy, last_->stepsPerS) : format("loss %.3f", loss));
  size_t taken = std::min(before.size() + after.size(), kColumns);
  size_t width = std::clamp(kColumns - taken, kNarrowestBar, kWidestBar);
  std::string text = before + bar((epoch - 1) * stepsPerEpoch_ + step, epochs_ * stepsPerEpoch_, width) + after;
  size_t length = text.size();
  if (length < drawn_) text.resize(drawn_, ' ');  // wipes what a longer bar left
  drawn_ = length;
  out_ << '\r' << text << std::flush;
}

}  // namespace hybrid
