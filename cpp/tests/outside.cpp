// What comes from outside of coroutines: wakes, other threads, functions that block, the runtime itself.
#include <string>
#include <thread>

#include "runtime.hpp"

TEST(a_wake_by_id_ends_a_park) {
  on_two_vcpus([]() -> u::task<> {
    std::atomic<bool> go = false;
    auto parked = u::spawn([&go]() -> u::task<> {
      while (!go) co_await u::park();
    });
    co_await u::sleep(1ms);
    CHECK(!parked.is_finished());
    go = true;
    CHECK(u::wake(parked.id()));
    co_await parked;
    CHECK(!u::wake(u::get_cid()) || true);
  }());
}

TEST(a_waker_goes_to_another_thread) {
  on_one_vcpu([]() -> u::task<> {
    std::atomic<bool> called = false;
    std::thread other;
    while (!called) {
      co_await u::suspend([&](u::waker waker) {
        if (other.joinable()) return;
        other = std::thread([&called, waker = std::move(waker)] {
          called = true;
          waker.wake();
        });
      });
    }
    other.join();
  }());
}

TEST(a_callback_that_cannot_be_left_behind_throws) {
  on_one_vcpu([]() -> u::task<> {
    bool caught = false;
    try {
      co_await u::suspend([](u::waker) { throw std::runtime_error("no callbacks today"); });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught);
    // It waits for nothing then.
    CHECK(co_await twice(1) == 2);
  }());
}

TEST(a_function_that_blocks_runs_elsewhere) {
  on_one_vcpu([]() -> u::task<> {
    const auto here = std::this_thread::get_id();
    auto there = u::blocking([] { return std::this_thread::get_id(); });
    CHECK(co_await there != here);
    auto failing = u::blocking([]() -> int { throw std::runtime_error("blocked"); });
    bool caught = false;
    try {
      (void)co_await failing;
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught);
    co_await u::blocking([] {});
  }());
}

TEST(a_handle_spawns_from_another_thread) {
  u::config settings;
  settings.vcpus = 1;
  u::runtime runtime(settings);
  auto handle = runtime.get_handle();
  std::atomic<int> ran = 0;
  std::thread([&] {
    for (int i = 0; i < 10; ++i) {
      u::spawn(handle, [](std::atomic<int>& ran) -> u::task<> {
        ++ran;
        co_return;
      }(ran)).detach();
    }
  }).join();
  runtime.block_on([](std::atomic<int>& ran) -> u::task<> {
    while (ran < 10) co_await u::yield_now();
  }(ran));
  const auto metrics = handle.metrics();
  CHECK(metrics.spawned >= 10 && metrics.polls >= 10);
  CHECK(handle.metrics(u::level{32}).polls >= 10);
  CHECK(handle.prometheus().find("upshift_") != std::string::npos);
}

TEST(spawning_outside_a_runtime_is_an_error) {
  auto tried = u::spawn(twice(1), u::inherit, u::as_result);
  CHECK(tried.error().value() == ENXIO);
  bool caught = false;
  try {
    (void)u::spawn(twice(1));
  } catch (const std::system_error& error) {
    caught = error.code().value() == ENXIO && std::string(error.what()).find("runtime") != std::string::npos;
  }
  CHECK(caught);
}

TEST(the_runtime_ends_with_coroutines_that_wait) {
  {
    u::runtime runtime;
    runtime.block_on([]() -> u::task<> {
      for (int i = 0; i < 50; ++i) {
        u::spawn([](counted) -> u::task<> { co_await u::sleep(1h); }(counted())).detach();
      }
      co_await u::sleep(1ms);
    }());
    CHECK(counted::alive == 50);
  }
  CHECK(counted::alive == 0);
}

TEST(settings_that_are_none_are_an_error) {
  for (const auto field : {&u::config::main_level, &u::config::preemption, &u::config::board, &u::config::driver}) {
    u::config settings;
    settings.*field = 77;
    CHECK(u::runtime::make(settings).error() == std::errc::invalid_argument);
  }
}

TEST(without_io_uring_coroutines_do_the_same) {
  u::config settings;
  settings.vcpus = 1;
  settings.driver = 2;
  u::runtime runtime(settings);
  runtime.block_on([]() -> u::task<> {
    auto [one, other] = connected();
    auto reading = u::spawn([](u::stream one) -> u::task<std::string> { co_return std::string((co_await one.recv()).view()); }(std::move(one)));
    co_await u::sleep(1ms);
    co_await other.write_all(u::buffer("epoll"));
    CHECK(co_await reading == "epoll");
  }());
}

TEST(versions_agree) {
  CHECK(upshift_abi_version() == UPSHIFT_ABI_VERSION);
  CHECK(upshift_version() >> 8 == 0x0001);
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
