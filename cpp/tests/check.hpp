// A minimal test harness: tests that register themselves, and checks that end the process with a
// message.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED 0
#endif

struct test_case {
  const char* name;
  void (*run)();
};

inline std::vector<test_case>& tests() {
  static std::vector<test_case> all;
  return all;
}

struct registration {
  registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define TEST(name)                                            \
  static void name();                                         \
  static const registration registration_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

/// Runs the tests whose names contain the first argument, or all tests.
inline int run_tests(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  int count = 0;
  for (const auto& test : tests()) {
    if (std::string_view(test.name).find(filter) == std::string_view::npos) continue;
    std::printf("test %s ... ", test.name);
    std::fflush(stdout);
    test.run();
    std::printf("ok\n");
    ++count;
  }
  std::printf("test result: ok. %d passed; 0 failed\n", count);
  return count == 0;
}
