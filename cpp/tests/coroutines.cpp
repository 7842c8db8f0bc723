// Coroutines: order, results, exceptions, cancellation, levels.
#include <string>

#include "runtime.hpp"

namespace {

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
    // An exception also passes through tasks. Even a join that returns errors as a result throws
    // it, because it is not an error of the runtime.
    try {
      (void)co_await [](void) -> u::task<int> { co_return co_await failing("in"); }();
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    CHECK(caught == "in");
    bool was_thrown = false;
    auto other = u::spawn(failing("twice"));
    try {
      (void)co_await other.join(u::as_result);
    } catch (const std::runtime_error&) {
      was_thrown = true;
    }
    CHECK(was_thrown);
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

TEST(coroutines_run_in_the_order_of_their_levels) {
  on_one_vcpu(
      []() -> u::task<> {
        std::vector<int> order;
        std::vector<u::join_handle<>> handles;
        const auto note = [&order](int n) -> u::task<> {
          order.push_back(n);
          co_return;
        };
        for (const int n : {40, 3, 63, 10, 3, 20, 1}) handles.push_back(u::spawn(note(n), u::level{n}));
        // The main coroutine is more urgent than the other coroutines, and interrupts them
        // repeatedly.
        while (order.size() < handles.size()) co_await u::sleep(1ms);
        CHECK((order == std::vector<int>{1, 3, 3, 10, 20, 40, 63}));
        for (auto& handle : handles) co_await handle;
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
        while (order.size() < 2) co_await u::sleep(1ms);
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
    auto stopped_at_once = u::spawn(source.get_token(), forever());
    CHECK(!co_await stopped_at_once.join(u::as_result));
  }());
}

TEST(a_stop_request_cancels_the_task_of_a_function) {
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

TEST(a_detached_coroutine_continues) {
  on_one_vcpu([]() -> u::task<> {
    bool done = false;
    u::spawn([&done]() -> u::task<> {
      co_await u::yield_now();
      done = true;
    }).detach();
    while (!done) co_await u::yield_now();
  }());
}

TEST(a_level_beyond_63_is_an_error) {
  on_one_vcpu([]() -> u::task<> {
    CHECK(u::spawn(twice(1), u::level{64}, u::as_result).error() == std::errc::invalid_argument);
    co_return;
  }());
}

TEST(an_urgent_coroutine_overtakes_a_coroutine_that_yields_if_needed) {
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

TEST(with_chaos_all_waits_end) {
  for (const std::uint64_t seed : {1, 7, 12345}) {
    u::config settings;
    settings.vcpus = 1;
    settings.chaos = seed;
    u::runtime runtime(settings);
    runtime.block_on([]() -> u::task<> {
      co_await u::sleep(1ms);
      CHECK(!co_await u::timeout(1ms, u::sleep(1h)));
      auto handle = u::spawn(twice(3));
      CHECK(co_await handle == 6);
      auto blocked = u::blocking([] { return 5; });
      CHECK(co_await blocked == 5);
      auto [send, receive] = u::channel<int>(1);
      auto sending = u::spawn([](u::sender<int> to) -> u::task<> {
        for (int i = 0; i < 10; ++i) co_await to.send(i);
      }(std::move(send)));
      for (int i = 0; i < 10; ++i) {
        auto got = co_await receive.recv();
        CHECK(got == i);
      }
      co_await sending;
    }());
  }
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
