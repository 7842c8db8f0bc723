// Calls from outside of coroutines: wakes, other threads, blocking functions, the runtime itself.
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "refuse.hpp"
#include "runtime.hpp"

TEST(a_wake_by_id_ends_a_park) {
  on_two_vcpus([]() -> u::task<> {
    std::atomic<bool> go = false;
    auto parked = u::spawn([&go]() -> u::task<> {
      while (!go) co_await u::park();
    });
    const auto id = parked.id();
    co_await u::sleep(1ms);
    CHECK(!parked.is_finished());
    go = true;
    CHECK(u::wake(id));
    co_await parked;
    CHECK(!u::wake(id));
    // A wake of the running coroutine ends its next park.
    CHECK(u::wake(u::get_cid()));
    co_await u::park();
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

TEST(an_exception_of_the_function_of_suspend_is_thrown) {
  on_one_vcpu([]() -> u::task<> {
    bool caught = false;
    try {
      co_await u::suspend([](u::waker) { throw std::runtime_error("no callbacks today"); });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught);
    // The coroutine does not wait after the exception.
    CHECK(co_await twice(1) == 2);
  }());
}

TEST(a_blocking_function_runs_on_another_thread) {
  on_one_vcpu([]() -> u::task<> {
    const auto own_thread = std::this_thread::get_id();
    auto other_thread = u::blocking([] { return std::this_thread::get_id(); });
    CHECK(co_await other_thread != own_thread);
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
  std::atomic<int> run_count = 0;
  std::thread([&] {
    for (int i = 0; i < 10; ++i) {
      u::spawn(handle, [](std::atomic<int>& run_count) -> u::task<> {
        ++run_count;
        co_return;
      }(run_count)).detach();
    }
  }).join();
  runtime.block_on([](std::atomic<int>& run_count) -> u::task<> {
    while (run_count < 10) co_await u::yield_now();
  }(run_count));
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

TEST(invalid_settings_are_an_error) {
  for (const auto field : {&u::config::main_level, &u::config::preemption, &u::config::board, &u::config::driver}) {
    u::config settings;
    settings.*field = 77;
    CHECK(u::runtime::make(settings).error() == std::errc::invalid_argument);
  }
}

TEST(coroutines_work_without_io_uring) {
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

TEST(a_blocking_function_without_a_thread_is_an_error) {
  if (!can_refuse()) return;
  // The test uses a thread of its own, because the filter cannot be removed.
  std::thread([] {
    on_one_vcpu([]() -> u::task<> {
      refuse({SYS_clone, SYS_clone3}, EAGAIN);
      counted kept;
      auto work = [kept] { return 1; };
      CHECK(u::blocking(work, u::as_result).error() == std::errc::resource_unavailable_try_again);
      bool caught = false;
      try {
        auto handle = u::blocking(work);
        handle.detach();
      } catch (const std::system_error& error) {
        caught = error.code().value() == EAGAIN;
      }
      CHECK(caught && counted::alive == 2);
      // The coroutine still runs.
      CHECK(co_await twice(1) == 2);
    }());
  }).join();
  CHECK(counted::alive == 0);
}

TEST(opening_a_file_without_io_uring_and_threads_is_an_error) {
  if (!can_refuse()) return;
  std::thread([] {
    u::config settings;
    settings.vcpus = 1;
    settings.driver = 2;
    auto runtime = u::runtime::make(settings);
    CHECK(runtime);
    runtime->block_on([]() -> u::task<> {
      refuse({SYS_clone, SYS_clone3}, EAGAIN);
      // This file may open at once, because its name is cached.
      const auto root = co_await u::file::open("/", O_RDONLY | O_DIRECTORY, u::as_result);
      const auto file = co_await u::file::open("/tmp/upshift-never-made", O_WRONLY | O_CREAT, u::as_result);
      CHECK(file.error().value() == EAGAIN);
      if (root) CHECK((co_await root->open_beneath("etc", O_RDONLY, u::as_result)).error().value() == EAGAIN);
    }());
  }).join();
}

TEST(a_blocking_function_outside_a_runtime_is_an_error) {
  CHECK(u::blocking([] { return 1; }, u::as_result).error().value() == ENXIO);
}

TEST(a_runtime_that_cannot_be_built_returns_the_reason) {
  if (!can_refuse()) return;
  struct case_t {
    long call;
    std::initializer_list<int> codes;
    std::uint32_t vcpus, driver, preemption;
  };
  const case_t cases[] = {
      {SYS_io_uring_setup, {EPERM, EACCES, ENOSYS, ENOMEM, EMFILE, ENFILE}, 1, 1, 0},
      {SYS_io_uring_setup, {EMFILE, ENFILE}, 1, 0, 0},
      {SYS_epoll_create1, {EMFILE, ENFILE, ENOMEM}, 1, 2, 0},
      {SYS_eventfd2, {EMFILE, ENFILE, ENOMEM}, 1, 1, 0},
      {SYS_eventfd2, {EMFILE, ENFILE, ENOMEM}, 1, 2, 0},
      {SYS_timerfd_create, {EMFILE, ENFILE, ENOMEM}, 1, 1, 2},
      {SYS_clone3, {EAGAIN, EPERM}, 2, 1, 0},
      {SYS_clone3, {EAGAIN}, 2, 2, 0},
      {SYS_clone3, {EAGAIN}, 1, 1, 2},
  };
  for (const auto& test : cases) {
    for (const int code : test.codes) {
      std::thread([&test, code] {
        u::config settings;
        settings.vcpus = test.vcpus;
        settings.driver = test.driver;
        settings.preemption = test.preemption;
        refuse({test.call}, code);
        const int actual = u::runtime::make(settings).error().value();
        if (actual != code) std::fprintf(stderr, "call %ld, error %d, driver %u, preemption %u: %d\n", test.call, code, test.driver, test.preemption, actual);
        CHECK(actual == code);
      }).join();
    }
  }
}

TEST(a_runtime_without_descriptors_returns_emfile) {
  struct rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int first = dup(0);
  CHECK(first >= 0);
  close(first);
  for (const auto& [driver, preemption] : {std::pair{1u, 0u}, {2u, 0u}, {0u, 2u}}) {
    u::config settings;
    settings.vcpus = 2;
    settings.driver = driver;
    settings.preemption = preemption;
    int extra = 0;
    for (;; ++extra) {
      struct rlimit tight = before;
      tight.rlim_cur = static_cast<rlim_t>(first + extra);
      CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
      const auto runtime = u::runtime::make(settings);
      CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
      if (runtime) break;
      if (runtime.error().value() != EMFILE) std::fprintf(stderr, "driver %u, preemption %u, %d descriptors: %s\n", driver, preemption, extra, runtime.error().message().c_str());
      CHECK(runtime.error().value() == EMFILE && extra < 64);
    }
    CHECK(extra > 0);
  }
}

TEST(a_cancelled_main_coroutine_is_an_error) {
  u::config settings;
  settings.vcpus = 1;
  u::runtime runtime(settings);
  const auto cancels_itself = [](counted) -> u::task<int> {
    CHECK(u::cancel(u::get_cid()));
    co_await u::sleep(1h);
    co_return 1;
  };
  CHECK(runtime.block_on(cancels_itself(counted()), u::as_result).error() == std::errc::operation_canceled);
  CHECK(counted::alive == 0);
  bool caught = false;
  try {
    (void)runtime.block_on(cancels_itself(counted()));
  } catch (const u::cancelled&) {
    caught = true;
  }
  CHECK(caught && counted::alive == 0);
  // The runtime still works.
  CHECK(runtime.block_on(twice(1)) == 2);
  CHECK(*runtime.block_on(twice(2), u::as_result) == 4);
}

TEST(versions_agree) {
  CHECK(upshift_abi_version() == UPSHIFT_ABI_VERSION);
  CHECK(upshift_version() >> 8 == 0x0001);
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
