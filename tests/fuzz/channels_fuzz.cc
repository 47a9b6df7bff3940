// The text of TREADLE_CHANNELS (link/channels.h).

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/link/channels.h"

namespace treadle::fuzz::channels_fuzz {
namespace {

std::string textOf(const Channels& channels) {
  std::string text;
  for (auto [name, wanted] :
       {std::pair("unix", channels.unixSockets), std::pair("tcp", channels.tcp), std::pair("lanes", channels.lanes),
        std::pair("shm", channels.sharedMemory), std::pair("cma", channels.crossMemory)})
    if (wanted) text += (text.empty() ? "" : ",") + std::string(name);
  return text;
}

void feed(Bytes input) {
  std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  Result<Channels> channels = Channels::parse(text);
  if (!channels.ok()) return promise(channels.status().code() == Code::kInvalidArgument, "a wrong text is told so");
  promise(channels->unixSockets || channels->tcp, "there is a way to others");
  Result<Channels> again = Channels::parse(textOf(*channels));
  promise(again.ok() && textOf(*again) == textOf(*channels), "what is read can be written and read again");
}

Inputs seeds() {
  return {bytesOf("unix,tcp,lanes,shm,cma"),
          bytesOf("tcp"),
          bytesOf("unix,shm"),
          bytesOf("shm"),
          bytesOf("tcp,,"),
          bytesOf("")};
}

const Fuzzer kChannels("channels", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::channels_fuzz
