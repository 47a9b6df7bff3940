#pragma once
// Whom an acceptor has refused: a flood of strangers must neither fill the log nor keep the processor busy. Each source
// (an address without its port; of IPv6 a network) has one line in the log a minute, and so many refusals a second;
// after more than that whoever comes from there has to wait for its turn, as an honest worker may be behind the same
// address. Owned by an acceptor, whose lock guards it.

#include <map>
#include <optional>
#include <string>

#include "treadle/core/base/clock.h"

namespace treadle::link {

class Strangers {
 public:
  static constexpr int kAtOnce = 64, kPerSecond = 20;  // refusals of a source
  static constexpr int kMostOwed = 6 * kPerSecond;     // those beyond are forgotten
  static constexpr size_t kSources = 1024;             // that are remembered: who came last
  static constexpr int kLinesPerMinute = 60;           // in the log, of all sources together

  // How long a connection from there has to wait before it may try to shake hands.
  Duration waitOf(const std::string& source, TimePoint now);
  // It was refused. The line for the log, or none when it has had one.
  std::optional<std::string> refused(const std::string& source, const std::string& why, TimePoint now);

 private:
  // Fills up with time (the "leaky bucket", J. Turner 1986, as a meter).
  struct Allowance {
    double left;
    TimePoint at{};
    void fill(double perSecond, double most, TimePoint now);
  };
  struct Source {
    Allowance tries{kAtOnce};
    std::optional<TimePoint> logged;
    uint64_t unlogged = 0;
  };

  Source& find(const std::string& source, TimePoint now);

  std::map<std::string, Source> sources_;
  Allowance lines_{kLinesPerMinute};
};

}  // namespace treadle::link
