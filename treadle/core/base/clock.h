#pragma once
// Time as Treadle measures it: the monotonic clock, durations in nanoseconds, deadlines as points in time.

#include <chrono>
#include <string>

namespace treadle {

// The steady clock, so that setting the machine's time moves no deadline. Its points mean something in this
// process alone: what travels between workers is the time that is left.
using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using TimePoint = Clock::time_point;

// A deadline that never comes: such a wait is bounded by the life of the peer alone.
inline constexpr TimePoint kNever = TimePoint::max();

// A time limit that never passes, for calls that may run for days; the peer's life bounds them.
inline constexpr Duration kNoTimeout = Duration::max();

// Now plus `limit`; kNever for a limit that would overflow.
inline TimePoint deadlineAfter(Duration limit) {
  TimePoint now = Clock::now();
  return limit >= kNever - now ? kNever : now + limit;
}

// "5 s", "1.5 s" or "20 ms", for messages.
std::string toText(Duration duration);

}  // namespace treadle
