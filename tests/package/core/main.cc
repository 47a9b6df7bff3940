// A job of one worker that calls itself: headers, archive and link interface of treadle::core are all there.
#include <cstdio>
#include <string>
#include <utility>

#include <treadle/core.h>

namespace {

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

int main() {
  try {
    treadle::JoinOptions options;
    options.name = "outside";
    options.functions.add<&repeat>("repeat");
    auto worker = treadle::Worker::join(std::move(options));
    std::string answer = worker->call<&repeat>("outside", std::string("ab"), 3);
    worker->shutdown();
    std::puts(answer == "ababab" ? "outside: ok" : "outside: wrong answer");
  } catch (const treadle::Error& error) {
    std::printf("outside: %s\n", error.what());
    return 1;
  }
}
