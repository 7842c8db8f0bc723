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
        auto made = u::blocking(work);
        made.detach();
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
    auto made = u::runtime::make(settings);
    CHECK(made);
    made->block_on([]() -> u::task<> {
      refuse({SYS_clone, SYS_clone3}, EAGAIN);
      // This file may open at once, because its name is cached.
      const auto here = co_await u::file::open("/", O_RDONLY | O_DIRECTORY, u::as_result);
      const auto file = co_await u::file::open("/tmp/upshift-never-made", O_WRONLY | O_CREAT, u::as_result);
      CHECK(file.error().value() == EAGAIN);
      if (here) CHECK((co_await here->open_beneath("etc", O_RDONLY, u::as_result)).error().value() == EAGAIN);
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
  for (const auto& one : cases) {
    for (const int code : one.codes) {
      std::thread([&one, code] {
        u::config settings;
        settings.vcpus = one.vcpus;
        settings.driver = one.driver;
        settings.preemption = one.preemption;
        refuse({one.call}, code);
        const int found = u::runtime::make(settings).error().value();
        if (found != code) std::fprintf(stderr, "call %ld, error %d, driver %u, preemption %u: %d\n", one.call, code, one.driver, one.preemption, found);
        CHECK(found == code);
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
    int more = 0;
    for (;; ++more) {
      struct rlimit tight = before;
      tight.rlim_cur = static_cast<rlim_t>(first + more);
      CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
      const auto made = u::runtime::make(settings);
      CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
      if (made) break;
      if (made.error().value() != EMFILE) std::fprintf(stderr, "driver %u, preemption %u, %d descriptors: %s\n", driver, preemption, more, made.error().message().c_str());
      CHECK(made.error().value() == EMFILE && more < 64);
    }
    CHECK(more > 0);
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
