// Exceptions that leave a coroutine and that no join receives.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "runtime.hpp"

namespace {

std::atomic<int> lost = 0;

void count(std::exception_ptr thrown) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::runtime_error& error) {
    if (error.what() == std::string_view("lost")) ++lost;
  }
}

u::task<int> throws(std::chrono::nanoseconds delay = 0ns) {
  co_await u::sleep(delay);
  throw std::runtime_error("lost");
}

/// Waits until `number` exceptions have been counted.
u::task<> wait_until_lost(int number) {
  for (int n = 0; lost != number; ++n) {
    CHECK(n < 5000);
    co_await u::sleep(1ms);
  }
}

/// Runs a function in a child process; returns its standard error and its status.
template <class F>
std::pair<std::string, int> in_a_child(F run) {
  int output[2];
  CHECK(pipe(output) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], 2);
    run();
    _exit(0);
  }
  close(output[1]);
  std::string all;
  char part[256];
  for (ssize_t n; (n = read(output[0], part, sizeof part)) > 0;) all.append(part, static_cast<std::size_t>(n));
  close(output[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return {all, status};
}

}  // namespace

TEST(an_exception_of_a_detached_coroutine_ends_the_program) {
  // The sanitizers report such an end differently.
  const auto [output, status] = in_a_child([] {
    on_two_vcpus([]() -> u::task<> {
      u::spawn(throws(1ms)).detach();
      co_await u::sleep(30s);
    }());
  });
  CHECK(status != 0);
  CHECK(output.find("no join handle is left") != std::string::npos);
  CHECK(output.find("lost") != std::string::npos);
}

TEST(a_handler_gets_each_exception_that_no_join_takes) {
  const auto before = u::set_unhandled_exception(count);
  on_two_vcpus([]() -> u::task<> {
    // A handle is detached before the throw, detached after it, destroyed, or assigned to.
    u::spawn(throws(2ms)).detach();
    co_await wait_until_lost(1);
    auto finished = u::spawn(throws());
    while (!finished.is_finished()) co_await u::sleep(1ms);
    CHECK(lost == 1);
    finished.detach();
    co_await wait_until_lost(2);
    { auto dropped = u::spawn(throws(1ms)); }
    co_await wait_until_lost(3);
    auto assigned = u::spawn(throws(1ms));
    assigned = u::spawn([]() -> u::task<int> { co_return 5; });
    co_await wait_until_lost(4);
    CHECK(co_await assigned == 5);
    // A function on a thread for blocking calls.
    u::blocking([] { throw std::runtime_error("lost"); }).detach();
    co_await wait_until_lost(5);
  }());
  CHECK(u::set_unhandled_exception(before) == count);
  CHECK(lost == 5);
}

TEST(an_exception_that_is_taken_is_not_unhandled) {
  // The default would end the program if any of these counted as lost.
  on_two_vcpus([]() -> u::task<> {
    const auto caught = [](auto make) -> u::task<bool> {
      try {
        (void)co_await make();
      } catch (const std::runtime_error&) {
        co_return true;
      }
      co_return false;
    };
    CHECK(co_await caught([] { return throws(); }));
    auto joined = u::spawn(throws());
    CHECK(co_await caught([&joined] { return joined.join(); }));
    auto timed = u::spawn(throws());
    CHECK(co_await caught([&timed] { return u::timeout(30s, timed); }));
    CHECK(co_await caught([] { return u::when_all(throws(), throws(1ms)); }));
    CHECK(co_await caught([] { return u::when_any(throws(1ms), throws(1ms)); }));
    // A cancelled coroutine has not thrown.
    auto cancelled = u::spawn(throws(1h));
    cancelled.cancel();
    cancelled.detach();
    co_await u::sleep(2ms);
  }());
  bool caught = false;
  try {
    on_two_vcpus([]() -> u::task<> { throw std::runtime_error("main"); co_return; }());
  } catch (const std::runtime_error&) {
    caught = true;
  }
  CHECK(caught);
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
