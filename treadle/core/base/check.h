#pragma once
// A check for our own bugs only. Nothing that a peer, a file, a user or the environment does may reach a failing
// check: those get a Status. A failing check prints where and why, and aborts. Any thread may call it.

#include <string_view>

namespace treadle::base {

[[noreturn]] void checkFailed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace treadle::base

#define TREADLE_CHECK(condition, message) \
  ((condition) ? static_cast<void>(0) : ::treadle::base::checkFailed(__FILE__, __LINE__, #condition, (message)))
