// Several awaitables at once in one coroutine: time limits, all, any; cancelled and kept branches.
#include <stdexcept>
#include <string>

#include "runtime.hpp"

namespace {

u::task<int> after(std::chrono::nanoseconds delay, int n) {
  counted frame;
  co_await u::sleep(delay);
  co_return n;
}

u::task<int> failing(std::chrono::nanoseconds delay, const char* what) {
  counted frame;
  co_await u::sleep(delay);
  throw std::runtime_error(what);
}

u::task<> forever() {
  counted frame;
  co_await u::sleep(1h);
}

template <class F>
u::task<std::string> thrown_by(F make) {
  try {
    (void)co_await make();
  } catch (const std::runtime_error& error) {
    co_return error.what();
  }
  co_return "";
}

}  // namespace

TEST(a_timeout_ends_a_task_and_its_frames) {
  on_one_vcpu([]() -> u::task<> {
    const auto outer = []() -> u::task<int> {
      counted frame;
      co_await forever();
      co_return 1;
    };
    CHECK(!co_await u::timeout(2ms, outer()));
    CHECK(counted::alive == 0);
    CHECK(*co_await u::timeout(1h, after(1ms, 7)) == 7);
    CHECK(co_await u::timeout(1h, []() -> u::task<> { co_return; }()));
    CHECK(!co_await u::timeout(1ms, forever()));
    CHECK(co_await thrown_by([] { return u::timeout(1h, failing(1ms, "early")); }) == "early");
    // Nested limits: the outer limit ends both waits.
    const auto nested = []() -> u::task<> {
      counted frame;
      CHECK(!co_await u::timeout(1ms, forever()));
      (void)co_await u::timeout(2h, forever());
    };
    CHECK(!co_await u::timeout(5ms, nested()));
    CHECK(counted::alive == 0);
  }());
}

TEST(a_coroutine_continues_after_a_timeout) {
  on_one_vcpu([]() -> u::task<> {
    auto handle = u::spawn(after(300ms, 3));
    CHECK(!co_await u::timeout(1ms, handle));
    CHECK(!co_await u::timeout(1ms, handle.join()));
    auto tried = co_await u::timeout(1ms, handle.join(u::as_result));
    CHECK(!tried && handle && counted::alive == 1);
    CHECK(*co_await u::timeout(1h, handle) == 3);
    CHECK(!handle);
    auto failed = u::spawn(failing(1ms, "joined"));
    CHECK(co_await thrown_by([&] { return u::timeout(1h, failed); }) == "joined");
    auto ended = u::spawn(after(0ns, 4));
    co_await u::sleep(1ms);
    CHECK(*co_await u::timeout(1h, ended.join()) == 4);
    // The result has been taken, so the join is an error and not a wait.
    CHECK((co_await u::timeout(1h, ended.join(u::as_result)))->error() == std::errc::invalid_argument);
  }());
}

TEST(an_abandoned_wait_for_a_coroutine_no_longer_lends_a_level) {
  on_one_vcpu([]() -> u::task<> {
    int level = -1;
    bool is_over = false;
    auto background = u::spawn(
        [&]() -> u::task<> {
          while (!is_over) {
            co_await u::sleep(1ms);
            level = u::current_level();
          }
        },
        u::level{50});
    auto urgent = u::spawn(
        [&]() -> u::task<> {
          CHECK(!co_await u::timeout(30ms, background));
          // The handle is kept.
          co_await u::sleep(1h);
        },
        u::level{3});
    for (int n = 0; level != 3 && n < 10'000; ++n) co_await u::sleep(1ms);
    CHECK(level == 3);
    for (int n = 0; level != 50 && n < 10'000; ++n) co_await u::sleep(1ms);
    CHECK(level == 50);
    urgent.cancel();
    is_over = true;
    co_await background;
  }());
}

TEST(a_cancelled_wait_for_a_coroutine_does_not_cancel_it) {
  on_one_vcpu([]() -> u::task<> {
    auto handle = u::spawn(after(300ms, 3));
    auto waiter = u::spawn([&handle]() -> u::task<> { (void)co_await u::when_any(handle.join(), u::sleep(1h)); });
    co_await u::sleep(1ms);
    waiter.cancel();
    CHECK(!co_await waiter.join(u::as_result));
    CHECK(co_await handle == 3);
  }());
}

TEST(when_all_runs_its_branches_concurrently) {
  on_one_vcpu([]() -> u::task<> {
    const auto started = std::chrono::steady_clock::now();
    auto [a, b, nothing, c] = co_await u::when_all(after(300ms, 1), after(200ms, 2), u::sleep(250ms), after(10ms, 3));
    // In sequence they would sleep for 760 ms.
    CHECK(std::chrono::steady_clock::now() - started < 700ms);
    CHECK(a == 1 && b == 2 && c == 3);
    (void)nothing;
    auto [one, other] = connected();
    auto [data, sent] = co_await u::when_all(one.recv(), other.write_all(u::buffer("both")));
    CHECK(data.view() == "both" && sent.size() == 4);
    auto [text] = co_await u::when_all([]() -> u::task<std::unique_ptr<int>> { co_return std::make_unique<int>(5); }());
    CHECK(*text == 5);
  }());
}

TEST(when_all_throws_the_first_exception_after_all_branches_have_ended) {
  on_one_vcpu([]() -> u::task<> {
    bool ended = false;
    const auto slow = [&ended]() -> u::task<> {
      co_await u::sleep(5ms);
      ended = true;
    };
    CHECK(co_await thrown_by([&] { return u::when_all(slow(), failing(2ms, "first"), failing(1ms, "second")); }) == "first");
    CHECK(ended && counted::alive == 0);
  }());
}

TEST(when_any_ends_the_other_branches) {
  on_one_vcpu([]() -> u::task<> {
    auto first = co_await u::when_any(forever(), after(1ms, 5), after(1h, 6));
    CHECK(first.index() == 1 && std::get<1>(first) == 5);
    CHECK(counted::alive == 0);
    // Two ready branches: the first parameter wins, and the other has not begun.
    bool ran = false;
    auto ready = co_await u::when_any([]() -> u::task<int> { co_return 1; }(), [&ran]() -> u::task<int> {
      ran = true;
      co_return 2;
    }());
    CHECK(ready.index() == 0 && !ran);
    CHECK(co_await thrown_by([] { return u::when_any(forever(), failing(1ms, "any")); }) == "any");
    auto [one, other] = connected();
    auto timed = co_await u::when_any(one.read(tracked::make(64), u::as_result), u::sleep(1ms));
    CHECK(timed.index() == 1);
    // The buffer is freed when the kernel is done with it.
    for (int n = 0; tracked::alive != 0; ++n) {
      CHECK(n < 1000);
      co_await u::sleep(1ms);
    }
    co_await other.write_all(std::string_view("kept"));
    auto data = co_await u::when_any(one.recv(), u::sleep(1h));
    CHECK(std::get<0>(data).view() == "kept");
  }());
}

TEST(a_ready_result_is_released_when_its_coroutine_is_cancelled) {
  on_one_vcpu([]() -> u::task<> {
    // Bytes, a connection, an object: the first branch is ready, the second never is.
    auto [one, other] = connected();
    auto listening = u::listener::tcp("127.0.0.1:0");
    auto peer = co_await u::connect_tcp(listening.local_address()->to_string());
    co_await other.write_all(std::string_view("there"));
    auto waiter = u::spawn([&]() -> u::task<> {
      (void)co_await u::when_all(one.recv(), listening.accept(), []() -> u::task<counted> { co_return counted(); }(), forever());
    });
    co_await u::sleep(5ms);
    CHECK(counted::alive == 2);
    waiter.cancel();
    CHECK(!co_await waiter.join(u::as_result));
    CHECK(counted::alive == 0);
    // The connection that had been accepted is closed.
    CHECK((co_await peer.recv()).empty());
  }());
}

TEST(sleep_until_waits_for_a_time_point) {
  on_one_vcpu([]() -> u::task<> {
    const auto deadline = std::chrono::steady_clock::now() + 3ms;
    co_await u::sleep_until(deadline);
    CHECK(std::chrono::steady_clock::now() >= deadline);
    co_await u::sleep_until(std::chrono::system_clock::now() - 1h);
  }());
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
