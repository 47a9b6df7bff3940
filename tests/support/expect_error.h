#pragma once
// What tests say about errors: which class was thrown, and what its message holds.

#include <gtest/gtest.h>

#include <string>

#include "treadle/core/base/error.h"

namespace treadle::test {

// The status of the `E` that `f` throws; a failure of the test and OK otherwise.
template <class E, class F>
Status statusOf(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.status();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw a " << demangled(typeid(error).name()) << ": " << error.what();
    return {};
  }
  ADD_FAILURE() << "threw nothing";
  return {};
}

// Its message.
template <class E, class F>
std::string messageOf(F f) {
  return statusOf<E>(std::move(f)).message();
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

}  // namespace treadle::test
