// Urgent work beside batch work on one vCPU: coroutines of level 2 wake every millisecond while
// coroutines of level 40 compute. Prints the delay of the urgent wakes, which last at most until
// the batch's next yield_if_needed(), and the work of the batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <upshift/upshift.hpp>

using namespace upshift;
using std::chrono::steady_clock;

task<std::vector<double>> urgent(int rounds) {
  std::vector<double> late;
  for (int i = 0; i < rounds; ++i) {
    const auto due = steady_clock::now() + std::chrono::milliseconds(1);
    co_await sleep(std::chrono::milliseconds(1));
    late.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - due).count());
  }
  co_return late;
}

task<std::uint64_t> batch(const bool& stop) {
  std::uint64_t x = 1;
  std::uint64_t done = 0;
  while (!stop) {
    for (int i = 0; i < 1000; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
    done += 1 + (x == 0);
    co_await yield_if_needed();
  }
  co_return done;
}

task<> compare() {
  bool stop = false;
  std::vector<join_handle<std::uint64_t>> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(spawn(batch(stop), level{40}));
  std::vector<join_handle<std::vector<double>>> urgents;
  for (int i = 0; i < 4; ++i) urgents.push_back(spawn(urgent(200), level{2}));
  std::vector<double> late;
  for (auto& one : urgents) {
    for (const double us : co_await one) late.push_back(us);
  }
  stop = true;
  std::uint64_t done = 0;
  for (auto& one : batches) done += co_await one;
  std::sort(late.begin(), late.end());
  std::printf("level  2: %zu wakes, late by %.0f us (half of them), %.0f us (99 of 100)\n", late.size(), late[late.size() / 2],
              late[late.size() * 99 / 100]);
  std::printf("level 40: %llu pieces of work meanwhile\n", static_cast<unsigned long long>(done));
  const auto here = handle::current();
  for (const int n : {2, 40}) {
    const auto metrics = here.metrics(level{n});
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
