// Suspended polls of C++: in a loop, with a lock, in the allocator, and while an exception is in
// flight.
#include <array>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "runtime.hpp"

namespace {

using watch = std::chrono::steady_clock;

u::config preemptible(unsigned vcpus) {
  u::config settings;
  settings.vcpus = vcpus;
  settings.preemption = 1;
  return settings;
}

/// The data of all coroutines of a test, under an ordinary lock.
struct shared {
  std::mutex lock;
  std::map<int, std::string> table;
  void put(int key, std::size_t length) {
    std::lock_guard held(lock);
    table[key % 50] = std::string(length, 'y');
  }
};

std::size_t length_or_throw(int n) {
  std::string text(100 + n % 1000, 'x');
  if (n % 3 == 0) throw std::runtime_error(text);
  return text.size();
}

u::task<long> busy(shared& data, watch::time_point deadline) {
  long rounds = 0;
  while (watch::now() < deadline) {
    std::size_t sum = 0;
    for (int i = 0; i < 1000; ++i) {
      try {
        sum += length_or_throw(i);
      } catch (const std::runtime_error& error) {
        sum += std::string(error.what()).size();
      }
      if (i % 10 == 0) data.put(i, static_cast<std::size_t>(i));
    }
    // Each `i` adds 100 + i.
    CHECK(sum == 599'500);
    ++rounds;
    co_await u::yield_if_needed();
  }
  co_return rounds;
}

u::task<long> urgent(shared& data, watch::time_point deadline) {
  long rounds = 0;
  while (watch::now() < deadline) {
    co_await u::sleep(500us);
    data.put(7, 6);
    try {
      throw rounds;
    } catch (long thrown) {
      CHECK(thrown == rounds);
    }
    ++rounds;
  }
  co_return rounds;
}

void all_end(unsigned vcpus) {
  u::runtime runtime(preemptible(vcpus));
  runtime.block_on([]() -> u::task<> {
    // ThreadSanitizer defers signals while a thread waits for a lock, so a waiting poll would never
    // be suspended for the holder. Under ThreadSanitizer, each coroutine has its own lock.
    std::array<shared, 5> tables;
    const auto table = [&](std::size_t i) -> shared& { return tables[THREAD_SANITIZED ? i : 0]; };
    const auto deadline = watch::now() + 400ms;
    std::vector<u::join_handle<long>> handles;
    for (int i = 0; i < 4; ++i) handles.push_back(u::spawn(busy(table(i), deadline), u::level{40 + i}));
    handles.push_back(u::spawn(urgent(table(4), deadline), u::level{1}));
    for (auto& handle : handles) (void)co_await handle;
    CHECK(table(0).table.size() > 0);
  }());
  if (runtime.get_handle().metrics().suspensions == 0) std::printf("skipped: nothing was suspended ... ");
}

}  // namespace

TEST(preemption_suspends_a_coroutine_of_cpp) {
  u::config settings;
  settings.vcpus = 1;
  settings.preemption = 1;
  u::runtime runtime(settings);
  const bool stopped_early = runtime.block_on([]() -> u::task<bool> {
    std::atomic<bool> stop = false;
    auto batch = u::spawn(
        [&stop]() -> u::task<bool> {
          const auto deadline = std::chrono::steady_clock::now() + 5s;
          while (!stop && std::chrono::steady_clock::now() < deadline) {
          }
          co_return stop.load();
        },
        u::level{40});
    auto urgent = u::spawn(
        [&stop]() -> u::task<> {
          co_await u::sleep(1ms);
          stop = true;
        },
        u::level{1});
    co_await urgent;
    co_return co_await batch;
  }());
  if (!stopped_early) std::printf("skipped: no preemption here ... ");
}

TEST(polls_that_lock_allocate_and_throw_end_when_they_are_suspended) { all_end(1); }

TEST(polls_that_lock_allocate_and_throw_end_on_two_vcpus) { all_end(2); }

int main(int argc, char** argv) { return run_tests(argc, argv); }
