// Coroutines: order, results, exceptions, cancellation, names, allocators.
#include <memory_resource>
#include <string>
#include <thread>

#include "runtime.hpp"

namespace {

u::task<int> twice(int n) {
  co_await u::yield_now();
  co_return 2 * n;
}

u::task<int> failing(const char* what) {
  co_await u::yield_now();
  throw std::runtime_error(what);
}

}  // namespace

TEST(a_result_reaches_the_handle) {
  on_one_vcpu([]() -> u::task<> {
    auto handle = u::spawn(twice(21), u::level{4});
    CHECK(handle.id() != u::cid::none);
    CHECK(co_await handle == 42);
    CHECK(!handle && handle.is_finished());
    CHECK(co_await twice(4) == 8);
    auto text = u::spawn([]() -> u::task<std::string> { co_return std::string(1000, 'x'); }());
    CHECK((co_await text).size() == 1000);
  }());
}

TEST(an_exception_reaches_the_handle) {
  on_one_vcpu([]() -> u::task<> {
    auto handle = u::spawn(failing("out"));
    std::string caught;
    try {
      (void)co_await handle;
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    CHECK(caught == "out");
    // Through tasks, and in a result too: it is no error of the runtime's.
    try {
      (void)co_await [](void) -> u::task<int> { co_return co_await failing("in"); }();
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    CHECK(caught == "in");
    bool again = false;
    auto other = u::spawn(failing("twice"));
    try {
      (void)co_await other.join(u::as_result);
    } catch (const std::runtime_error&) {
      again = true;
    }
    CHECK(again);
    // Of one that nobody waits for it ends with it.
    u::spawn(failing("lost")).detach();
    co_await u::sleep(2ms);
  }());
}

TEST(an_exception_leaves_block_on) {
  bool caught = false;
  try {
    on_one_vcpu([]() -> u::task<> {
      co_await u::yield_now();
      throw 7;
    }());
  } catch (int n) {
    caught = n == 7;
  }
  CHECK(caught);
}

TEST(levels_make_the_order) {
  on_one_vcpu(
      []() -> u::task<> {
        std::vector<int> order;
        std::vector<u::join_handle<>> all;
        const auto note = [&order](int n) -> u::task<> {
          order.push_back(n);
          co_return;
        };
        for (const int n : {40, 3, 63, 10, 3, 20, 1}) all.push_back(u::spawn(note(n), u::level{n}));
        co_await u::sleep(5ms);
        CHECK((order == std::vector<int>{1, 3, 3, 10, 20, 40, 63}));
        for (auto& one : all) co_await one;
      }(),
      0);
}

TEST(reprio_moves_a_coroutine_that_is_ready) {
  on_one_vcpu(
      []() -> u::task<> {
        std::vector<int> order;
        const auto note = [&order](int n) -> u::task<> {
          order.push_back(n);
          CHECK(u::current_level() == n || n == 9);
          co_return;
        };
        auto first = u::spawn(note(5), u::level{5});
        auto second = u::spawn(note(9), u::level{50});
        CHECK(u::reprio(second.id(), u::level{4}));
        CHECK(!u::reprio(second.id(), u::level{64}));
        co_await u::sleep(2ms);
        CHECK((order == std::vector<int>{9, 5}));
        co_await first;
        co_await second;
        CHECK(!u::wake(u::cid{0xffff'0000'0001}));
      }(),
      0);
}

TEST(children_inherit_the_level) {
  on_one_vcpu([]() -> u::task<> {
    const auto level = []() -> u::task<int> { co_return u::current_level(); };
    auto handle = u::spawn(
        [level]() -> u::task<int> {
          auto child = u::spawn(level());
          co_return co_await child;
        },
        u::level{7});
    CHECK(co_await handle == 7);
    CHECK(u::get_cid() != u::cid::none);
  }());
  CHECK(u::get_cid() == u::cid::none);
  CHECK(u::current_level() < 0);
}

TEST(cancelled_frames_are_destroyed_innermost_first) {
  on_one_vcpu([]() -> u::task<> {
    std::vector<int> ended;
    struct note {
      std::vector<int>& to;
      int n;
      ~note() { to.push_back(n); }
    };
    const auto inner = [&ended]() -> u::task<> {
      note here{ended, 1};
      co_await u::sleep(1h);
    };
    const auto outer = [&]() -> u::task<> {
      note here{ended, 2};
      co_await inner();
    };
    auto handle = u::spawn(outer());
    co_await u::sleep(1ms);
    CHECK(ended.empty());
    handle.cancel();
    bool caught = false;
    try {
      co_await handle;
    } catch (const u::cancelled&) {
      caught = true;
    }
    CHECK(caught);
    CHECK((ended == std::vector<int>{1, 2}));
    auto never_begun = u::spawn(outer());
    never_begun.cancel();
    CHECK((co_await never_begun.join(u::as_result)).error() == std::errc::operation_canceled);
    CHECK(ended.size() == 2);
    auto by_id = u::spawn(outer());
    CHECK(u::cancel(by_id.id()));
    CHECK(!co_await by_id.join(u::as_result));
  }());
}

TEST(a_stop_request_cancels) {
  on_two_vcpus([]() -> u::task<> {
    std::stop_source source;
    const auto forever = []() -> u::task<> { co_await u::sleep(1h); };
    auto handle = u::spawn(source.get_token(), forever());
    auto unstopped = u::spawn(source.get_token(), twice(3));
    CHECK(co_await unstopped == 6);
    co_await u::sleep(1ms);
    std::thread([&] { source.request_stop(); }).join();
    CHECK((co_await handle.join(u::as_result)).error() == std::errc::operation_canceled);
    auto late = u::spawn(source.get_token(), forever());
    CHECK(!co_await late.join(u::as_result));
  }());
}

TEST(a_stop_request_ends_what_a_function_makes) {
  on_two_vcpus([]() -> u::task<> {
    std::stop_source source;
    const std::string text(100, 's');
    auto handle = u::spawn(source.get_token(), [text]() -> u::task<std::size_t> {
      co_await u::sleep(1h);
      co_return text.size();
    });
    auto elsewhere = u::spawn(u::handle::current(), [text]() -> u::task<std::size_t> { co_return text.size(); });
    CHECK(co_await elsewhere == 100);
    source.request_stop();
    CHECK(!co_await handle.join(u::as_result));
  }());
}

TEST(a_task_is_awaited_once) {
  on_one_vcpu([]() -> u::task<> {
    auto once = twice(2);
    CHECK(co_await std::move(once) == 4);
    bool caught = false;
    try {
      // NOLINTNEXTLINE(bugprone-use-after-move): this is the mistake.
      (void)co_await std::move(once);
    } catch (const std::system_error& error) {
      caught = error.code() == std::errc::invalid_argument;
    }
    CHECK(caught);
  }());
}

TEST(a_task_that_is_never_begun_is_destroyed) {
  {
    auto unused = [](counted) -> u::task<> { co_return; }(counted());
    CHECK(counted::alive == 1);
  }
  CHECK(counted::alive == 0);
}

TEST(a_detached_coroutine_goes_on) {
  on_one_vcpu([]() -> u::task<> {
    bool done = false;
    u::spawn([&done]() -> u::task<> {
      co_await u::yield_now();
      done = true;
    }).detach();
    while (!done) co_await u::yield_now();
  }());
}

TEST(what_a_lambda_captures_lives_as_long_as_its_coroutine) {
  on_one_vcpu([]() -> u::task<> {
    std::string text(100, 'c');
    auto handle = u::spawn([text]() -> u::task<std::size_t> {
      co_await u::sleep(1ms);
      co_return text.size();
    });
    CHECK(co_await handle == 100);
  }());
}

namespace {

u::task<long> depth(long n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await depth(n - 1);
}

u::task<long> ready(long n) { co_return n; }

u::task<> deep_wait(long n) {
  counted frame;
  if (n == 0) {
    co_await u::sleep(1h);
  } else {
    co_await deep_wait(n - 1);
  }
}

}  // namespace

TEST(deep_and_long_trees_do_not_use_the_stack) {
  on_one_vcpu([]() -> u::task<> {
    CHECK(co_await depth(20'000) == 20'000);
    long sum = 0;
    for (long n = 0; n < 200'000; ++n) sum += co_await ready(1);
    CHECK(sum == 200'000);
  }());
}

TEST(a_deep_tree_is_cancelled_without_using_the_stack) {
  on_two_vcpus([]() -> u::task<> {
    for (int i = 0; i < 2; ++i) {
      auto handle = u::spawn(deep_wait(200'000));
      while (counted::alive != 200'001) co_await u::sleep(1ms);
      if (i == 0) {
        handle.cancel();
        CHECK(!co_await handle.join(u::as_result));
        CHECK(counted::alive == 0);
      } else {
        // The runtime's end cancels it.
        handle.detach();
      }
    }
  }());
  CHECK(counted::alive == 0);
}

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

TEST(a_level_beyond_63_is_an_error) {
  on_one_vcpu([]() -> u::task<> {
    CHECK(u::spawn(twice(1), u::level{64}, u::as_result).error() == std::errc::invalid_argument);
    co_return;
  }());
}

TEST(urgent_coroutines_pass_one_that_yields_if_needed) {
  on_one_vcpu([]() -> u::task<> {
    bool stop = false;
    auto urgent = u::spawn(
        [&stop]() -> u::task<> {
          co_await u::sleep(2ms);
          stop = true;
        },
        u::level{1});
    auto batch = u::spawn(
        [&stop]() -> u::task<long> {
          long n = 0;
          while (!stop) {
            ++n;
            co_await u::yield_if_needed();
          }
          co_return n;
        },
        u::level{40});
    CHECK(co_await batch > 0);
    co_await urgent;
  }());
}

namespace {

/// Counts what it has given.
struct counting : std::pmr::memory_resource {
  long live = 0;
  long given = 0;
  void* do_allocate(std::size_t bytes, std::size_t align) override {
    ++live;
    ++given;
    return std::pmr::new_delete_resource()->allocate(bytes, align);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t align) override {
    --live;
    std::pmr::new_delete_resource()->deallocate(p, bytes, align);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

using allocator = std::pmr::polymorphic_allocator<std::byte>;

[[gnu::noinline]] u::task<int> from(std::allocator_arg_t, allocator, int n) {
  co_await u::yield_now();
  co_return n;
}

struct with_members {
  // Not inlined, as `from`: clang++ would do without a frame on the heap.
  [[gnu::noinline]] u::task<int> run(std::allocator_arg_t, allocator) { co_return 5; }
};

}  // namespace

TEST(frames_come_from_the_allocator_that_is_given) {
  counting memory;
  on_one_vcpu([](counting& memory) -> u::task<> {
    CHECK(co_await from(std::allocator_arg, &memory, 3) == 3);
    auto handle = u::spawn(from(std::allocator_arg, &memory, 4));
    CHECK(memory.live == 1);
    CHECK(co_await handle == 4);
    with_members object;
    CHECK(co_await object.run(std::allocator_arg, &memory) == 5);
    { auto unused = from(std::allocator_arg, &memory, 1); }
  }(memory));
  CHECK(memory.given == 4 && memory.live == 0);
}

TEST(no_memory_for_a_frame_is_an_error) {
  on_one_vcpu([]() -> u::task<> {
    auto empty = from(std::allocator_arg, std::pmr::null_memory_resource(), 1);
    CHECK(!empty);
    CHECK(u::spawn(std::move(empty), u::inherit, u::as_result).error() == std::errc::not_enough_memory);
    bool caught = false;
    try {
      (void)co_await from(std::allocator_arg, std::pmr::null_memory_resource(), 1);
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    CHECK(caught);
  }());
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
