#pragma once
// Carries what the workers write from their pipes to the console, line by line. One thread; owned by the run,
// called by its reactor.
//
// While the console is congested nothing is read: the pipes fill, and a worker that writes more waits, as it
// would on a terminal. So the memory taken is bounded whatever the workers write.

#include <memory>
#include <vector>

#include "treadle/cli/console.h"
#include "treadle/cli/line_splitter.h"
#include "treadle/core/io/fd.h"
#include "treadle/core/io/reactor.h"

namespace treadle::cli {

class Relay {
 public:
  Relay(io::Reactor& reactor, Console& console) : reactor_(reactor), console_(console) {}
  ~Relay();

  // Takes over the read end of a worker's pipe.
  Status add(int rank, Stream stream, io::Fd pipe);

  // Reads on after the console was congested.
  void resume();

  // Whether every pipe has come to its end: nobody holds the other end any more.
  bool done() const { return open_ == 0; }

  // Takes what still lies in the pipes and no more, and lets them go, whoever holds the other ends.
  void finish();

 private:
  struct Source {
    int rank;
    Stream stream;
    io::Fd pipe;
    LineSplitter splitter;
  };

  enum class ReadResult { kData, kNothing, kEnd };

  Status watch(Source& source);
  void onReadable(Source& source);
  ReadResult readSome(Source& source);
  void pause();
  void close(Source& source);

  io::Reactor& reactor_;
  Console& console_;
  std::vector<std::unique_ptr<Source>> sources_;  // one per pipe; their addresses stay
  std::vector<std::string> lines_;                // scratch
  size_t open_ = 0;
  bool paused_ = false;
};

}  // namespace treadle::cli
