// Urgent work beside batch work on one vCPU: coroutines of level 2 wake every millisecond while
// coroutines of level 40 compute. Prints the delays of the urgent wakes, each of which lasts at
// most until the batch's next yield_if_needed(), and the work of the batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <upshift/upshift.hpp>

using namespace upshift;
using std::chrono::steady_clock;

task<std::vector<double>> urgent(int rounds) {
  std::vector<double> delays_us;
  for (int i = 0; i < rounds; ++i) {
    const auto due = steady_clock::now() + std::chrono::milliseconds(1);
    co_await sleep(std::chrono::milliseconds(1));
    delays_us.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - due).count());
  }
  co_return delays_us;
}

task<std::uint64_t> batch(const bool& stop) {
  std::uint64_t x = 1;
  std::uint64_t pieces = 0;
  while (!stop) {
    for (int i = 0; i < 1000; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
    pieces += 1 + (x == 0);
    co_await yield_if_needed();
  }
  co_return pieces;
}

task<> compare() {
  bool stop = false;
  std::vector<join_handle<std::uint64_t>> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(spawn(batch(stop), level{40}));
  std::vector<join_handle<std::vector<double>>> urgents;
  for (int i = 0; i < 4; ++i) urgents.push_back(spawn(urgent(200), level{2}));
  std::vector<double> delays_us;
  for (auto& waker : urgents) {
    for (const double us : co_await waker) delays_us.push_back(us);
  }
  stop = true;
  std::uint64_t pieces = 0;
  for (auto& worker : batches) pieces += co_await worker;
  std::sort(delays_us.begin(), delays_us.end());
  std::printf("level  2: %zu wakes, late by %.0f us (half of them), %.0f us (99 of 100)\n", delays_us.size(), delays_us[delays_us.size() / 2],
              delays_us[delays_us.size() * 99 / 100]);
  std::printf("level 40: %llu pieces of work meanwhile\n", static_cast<unsigned long long>(pieces));
  const auto runtime_handle = handle::current();
  for (const int n : {2, 40}) {
    const auto metrics = runtime_handle.metrics(level{n});
    std::printf("level %2d: %llu polls\n", n, static_cast<unsigned long long>(metrics.polls));
  }
}

int main() {
  config settings;
  settings.vcpus = 1;
  // The main coroutine waits for the other coroutines, and must be able to cancel them.
  settings.main_level = 0;
  runtime(settings).block_on(compare());
}
