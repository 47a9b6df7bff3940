#pragma once
// Which sanitizer this program was compiled with, for the few tests that cannot run under one. g++ and clang report it
// in different macros.

namespace treadle::test {

#if defined(__has_feature)
#define TREADLE_TEST_HAS_FEATURE(name) __has_feature(name)
#else
#define TREADLE_TEST_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || TREADLE_TEST_HAS_FEATURE(address_sanitizer)
#define TREADLE_TEST_SANITIZED
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || TREADLE_TEST_HAS_FEATURE(thread_sanitizer)
#define TREADLE_TEST_SANITIZED
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Either: memory that is reserved or asked for differs from that of a plain build.
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace treadle::test
