#include "treadle/tensor/bridge/thread_state.h"

#include <optional>
#include <thread>

namespace treadle::bridge {
namespace {

// A thread of its own has the state that libtorch gives to every new thread.
at::ThreadLocalState freshState() {
  std::optional<at::ThreadLocalState> state;
  std::thread([&] { state.emplace(); }).join();
  return *state;
}

}  // namespace

CleanThreadState::CleanThreadState() : state_(freshState()) {}

}  // namespace treadle::bridge
