#pragma once
// `treadle bench`: what calls and large values cost between two workers, beside what the machine can do without any
// library, measured in turn so that a busy moment meets both. Rank 0 measures with rank 1; all others wait. Bounded by
// one time limit. One thread.

#include <functional>
#include <optional>

#include "treadle/cli/figures.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/worker/worker.h"

namespace treadle::cli {

struct BenchOptions {
  std::vector<int> megabytes = {1, 4, 40, 400};  // MiB
  int repetitions = 0;                           // 0: as many as go into about 10 s
  std::optional<Channels> channels;              // default: TREADLE_CHANNELS, or all
  Duration timeout = std::chrono::seconds(60);
};

// As the worker that `launch` says. Rank 0 returns figures, the others none. `progress` is told what is being measured.
// Throws subclasses of Error: what Worker::join does, PeerLostError when rank 1 dies.
Figures measure(const Launch& launch, const BenchOptions& options,
                const std::function<void(const std::string&)>& progress);

}  // namespace treadle::cli
