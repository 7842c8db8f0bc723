// Objects that are used twice, empty, by another owner, or too late give an error value or an
// exception.
#include <unistd.h>

#include <limits>
#include <string>
#include <thread>

#include "runtime.hpp"

namespace {

/// Returns the error that a function throws, or 0.
template <class F>
u::task<int> thrown_by(F make) {
  try {
    (void)co_await make();
  } catch (const std::system_error& error) {
    co_return error.code().value();
  }
  co_return 0;
}

/// A pipe for asynchronous reads into a tracked buffer.
struct piped {
  int fds[2];
  piped() { CHECK(pipe(fds) == 0); }
  piped(const piped&) = delete;
  ~piped() {
    close(fds[0]);
    close(fds[1]);
  }
  auto read() { return u::read(fds[0], tracked::make(8), u::get_cid()); }
  void write() { CHECK(::write(fds[1], "x", 1) == 1); }
};

/// Waits until every tracked buffer has been released.
u::task<> wait_for_release() {
  for (int n = 0; tracked::alive != 0; ++n) {
    CHECK(n < 5000);
    co_await u::sleep(1ms);
  }
}

}  // namespace

TEST(a_stopped_call_fails_before_during_and_after_its_await) {
  on_two_vcpus([]() -> u::task<> {
    {
      piped pipe;
      auto before = pipe.read();
      before.stop();
      before.stop();
      CHECK((co_await before).count.error().value() == ECANCELED);
      CHECK((co_await before).buf.capacity() == 0);
    }
    {
      piped pipe;
      auto during = pipe.read();
      auto waiter = u::spawn([&during]() -> u::task<int> { co_return (co_await during).count.error().value(); });
      co_await u::sleep(2ms);
      CHECK(!waiter.is_finished());
      during.stop();
      CHECK(*co_await u::timeout(30s, waiter) == ECANCELED);
    }
    {
      // A thread outside of the runtime stops the call.
      piped pipe;
      auto during = pipe.read();
      auto waiter = u::spawn([&during]() -> u::task<int> { co_return (co_await during).count.error().value(); });
      co_await u::sleep(2ms);
      std::thread([&during] { during.stop(); }).join();
      CHECK(*co_await u::timeout(30s, waiter) == ECANCELED);
    }
    {
      piped pipe;
      auto after = pipe.read();
      pipe.write();
      auto got = *co_await u::timeout(30s, std::move(after));
      CHECK(*got.count == 1 && got.buf.view() == "x");
      after.stop();
      CHECK((co_await after).count.error().value() == EINVAL);
    }
    {
      // The call has completed when it is stopped.
      piped pipe;
      auto done = pipe.read();
      pipe.write();
      co_await u::sleep(2ms);
      done.stop();
      CHECK((co_await done).count.error().value() == ECANCELED);
    }
    {
      auto refused = u::read(-1, tracked::make(8), u::get_cid());
      refused.stop();
      CHECK((co_await refused).count.error().value() == ECANCELED);
    }
    co_await wait_for_release();
  }());
}

TEST(a_call_is_awaited_once) {
  on_two_vcpus([]() -> u::task<> {
    piped pipe;
    auto call = pipe.read();
    pipe.write();
    CHECK((co_await call).buf.view() == "x");
    for (int i = 0; i < 2; ++i) {
      auto again = co_await call;
      CHECK(again.count.error().value() == EINVAL && again.buf.data() == nullptr);
    }
    auto refused = u::read(-1, tracked::make(8), u::get_cid());
    CHECK((co_await refused).count.error().value() == EBADF);
    CHECK((co_await refused).count.error().value() == EINVAL);
    // Two coroutines await the call at once: the first coroutine waits.
    auto shared = pipe.read();
    auto waiter = u::spawn([&shared]() -> u::task<std::size_t> { co_return *(co_await shared).count; });
    co_await u::sleep(2ms);
    CHECK((co_await shared).count.error().value() == EBUSY);
    CHECK((*co_await u::timeout(30s, std::move(shared))).count.error().value() == EBUSY);
    pipe.write();
    CHECK(*co_await u::timeout(30s, waiter) == 1);
    // A cancelled waiter leaves the call to the next waiter.
    auto call_for_two = pipe.read();
    auto cancelled = u::spawn([&call_for_two]() -> u::task<> { (void)co_await call_for_two; });
    co_await u::sleep(2ms);
    cancelled.cancel();
    CHECK(!co_await cancelled.join(u::as_result));
    pipe.write();
    CHECK(*(*co_await u::timeout(30s, std::move(call_for_two))).count == 1);
    co_await wait_for_release();
  }());
}

TEST(a_call_that_exceeds_its_time_limit_is_stopped) {
  on_two_vcpus([]() -> u::task<> {
    piped pipe;
    CHECK(!co_await u::timeout(1ms, pipe.read()));
    auto named = pipe.read();
    CHECK(!co_await u::timeout(1ms, std::move(named)));
    CHECK((co_await named).count.error().value() == ECANCELED);
    auto first = co_await u::when_any(pipe.read(), u::sleep(1ms));
    CHECK(first.index() == 1);
    // A separate pipe: a stopped call may still take arriving bytes.
    piped other;
    auto early = other.read();
    other.write();
    CHECK(*(*co_await u::timeout(30s, std::move(early))).count == 1);
    co_await wait_for_release();
  }());
}

TEST(calls_are_stopped_at_random_while_coroutines_await_them) {
  on_two_vcpus([]() -> u::task<> {
    for (int i = 0; i < 300; ++i) {
      piped pipe;
      auto call = pipe.read();
      auto waiter = u::spawn([&call]() -> u::task<int> { co_return (co_await call).count.error().value(); });
      std::thread other([&call, &pipe, i] {
        for (int n = 0; n < i; ++n) std::atomic_signal_fence(std::memory_order_seq_cst);
        if (i % 2 == 0) pipe.write();
        call.stop();
      });
      auto code = co_await u::timeout(30s, waiter);
      other.join();
      CHECK(code && (*code == 0 || *code == ECANCELED));
    }
    co_await wait_for_release();
  }());
}

TEST(a_call_outside_a_runtime_is_an_error) {
  piped pipe;
  {
    auto call = u::read(pipe.fds[0], tracked::make(8), u::cid::none);
    auto other = u::write(pipe.fds[1], u::buffer("x"), u::cid{7});
    call.stop();
  }
  CHECK(tracked::alive == 0);
}

TEST(a_task_begins_once) {
  on_two_vcpus([]() -> u::task<> {
    // A task that was awaited is passed to every function that starts a task.
    const auto ended = []() -> u::task<u::task<int>> {
      auto awaited = twice(1);
      CHECK(co_await std::move(awaited) == 2);
      CHECK(!awaited);
      co_return awaited;
    };
    CHECK(u::spawn(co_await ended(), u::inherit, u::as_result).error() == std::errc::invalid_argument);
    CHECK(u::spawn(u::handle::current(), co_await ended(), u::inherit, u::as_result).error() == std::errc::invalid_argument);
    CHECK(u::spawn(std::stop_token(), co_await ended(), u::inherit, u::as_result).error() == std::errc::invalid_argument);
    const auto code = co_await thrown_by([&]() -> u::task<int> { co_return co_await u::spawn(co_await ended()); });
    CHECK(code == EINVAL);
    CHECK(co_await thrown_by([&] { return ended(); }) == 0);
    CHECK(co_await thrown_by([] { return u::task<int>(); }) == EINVAL);
    CHECK(co_await thrown_by([] { return u::timeout(30s, u::task<int>()); }) == EINVAL);
    CHECK(co_await thrown_by([] { return u::when_all(twice(1), u::task<int>()); }) == EINVAL);
    CHECK(co_await thrown_by([] { return u::when_any(u::task<>(), u::sleep(1h)); }) == EINVAL);
    CHECK(co_await thrown_by([] { return u::with_stop(std::stop_token(), u::task<int>()); }) == EINVAL);
    // A task that was moved from is empty.
    auto from = twice(3);
    auto to = std::move(from);
    CHECK(co_await thrown_by([&] { return std::move(from); }) == EINVAL);
    auto& self = to;
    to = std::move(self);
    CHECK(to && co_await std::move(to) == 6);
    // A task that was spawned is empty.
    auto spawned = twice(4);
    auto handle = u::spawn(std::move(spawned));
    CHECK(u::spawn(std::move(spawned), u::inherit, u::as_result).error() == std::errc::invalid_argument);
    CHECK(co_await handle == 8);
    // An awaiter is awaited twice.
    auto once = twice(5);
    auto awaiter = std::move(once).operator co_await();
    CHECK(co_await awaiter == 10);
    int caught = 0;
    try {
      (void)co_await awaiter;
    } catch (const std::system_error& error) {
      caught = error.code().value();
    }
    CHECK(caught == EINVAL);
  }());
  CHECK(u::runtime().block_on(u::task<int>(), u::as_result).error() == std::errc::invalid_argument);
}

TEST(a_running_task_belongs_to_its_awaiter) {
  on_one_vcpu([]() -> u::task<> {
    // Another coroutine that uses the task meanwhile finds it empty.
    auto shared = []() -> u::task<int> {
      counted frame;
      co_await u::sleep(2ms);
      co_return 1;
    }();
    auto waiter = u::spawn([&shared]() -> u::task<int> { co_return co_await std::move(shared); });
    co_await u::yield_now();
    co_await u::yield_now();
    CHECK(counted::alive == 1 && !shared);
    CHECK(u::spawn(std::move(shared), u::inherit, u::as_result).error() == std::errc::invalid_argument);
    shared = twice(1);
    CHECK(co_await waiter == 1);
    CHECK(co_await std::move(shared) == 2);
    // Operations of the task on itself.
    u::task<> own;
    own = [](u::task<>& own) -> u::task<> {
      counted frame;
      int caught = 0;
      try {
        co_await std::move(own);
      } catch (const std::system_error& error) {
        caught = error.code().value();
      }
      CHECK(caught == EINVAL);
      own = u::task<>();
      co_await u::yield_now();
    }(own);
    co_await std::move(own);
    CHECK(counted::alive == 0);
    // The frames of a cancelled task end once.
    auto kept = []() -> u::task<> {
      counted frame;
      co_await u::sleep(1h);
    }();
    auto cancelled = u::spawn([&kept]() -> u::task<> { co_await std::move(kept); });
    co_await u::yield_now();
    co_await u::yield_now();
    CHECK(counted::alive == 1);
    cancelled.cancel();
    CHECK(!co_await cancelled.join(u::as_result));
    CHECK(counted::alive == 0 && !kept);
  }());
}

TEST(an_operation_is_awaited_once) {
  on_two_vcpus([]() -> u::task<> {
    auto [one, other] = connected();
    auto write = one.write_all(u::buffer("once"), u::as_result);
    CHECK((co_await write).done);
    CHECK((co_await write).done.error().value() == EINVAL);
    auto read = other.read(tracked::make(16), u::as_result);
    CHECK(*(co_await read).count == 4);
    CHECK((co_await read).count.error().value() == EINVAL);
    auto [to, from] = u::channel<std::unique_ptr<counted>>(4);
    auto send = to.send(std::make_unique<counted>(), u::as_result);
    CHECK(co_await send);
    CHECK((co_await send).error().value() == EINVAL);
    CHECK(from.try_recv() && !from.try_recv());
    // The second await is made during the first.
    auto waiting = other.recv(u::as_result);
    auto waiter = u::spawn([](auto& waiting) -> u::task<std::string> {
      auto data = co_await waiting;
      co_return std::string(data->view());
    }(waiting));
    co_await u::sleep(2ms);
    CHECK((co_await waiting).error().value() == EINVAL);
    co_await one.write_all(std::string_view("late"));
    CHECK(*co_await u::timeout(30s, waiter) == "late");
    auto stopped = other.recv(u::as_result);
    stopped.stop();
    CHECK((co_await stopped).error().value() == ECANCELED);
    auto all = u::when_all(twice(1), twice(2));
    CHECK(std::get<1>(co_await std::move(all)) == 4);
    CHECK(co_await thrown_by([&]() -> u::task<> { (void)co_await std::move(all); }) == EINVAL);
  }());
  CHECK(tracked::alive == 0 && counted::alive == 0);
}

TEST(a_coroutine_is_joined_once) {
  on_two_vcpus([]() -> u::task<> {
    const auto after = [](std::chrono::nanoseconds delay) -> u::task<int> {
      co_await u::sleep(delay);
      co_return 7;
    };
    const auto join_of = [](u::join_handle<int>& handle) -> u::task<u::result<int>> { co_return co_await handle.join(u::as_result); };
    auto handle = u::spawn(after(50ms));
    auto first_waiter = u::spawn(join_of(handle));
    co_await u::sleep(2ms);
    CHECK((co_await handle.join(u::as_result)).error().value() == EBUSY);
    CHECK(**co_await u::timeout(30s, first_waiter) == 7);
    CHECK((co_await handle.join(u::as_result)).error().value() == EINVAL);
    auto join = handle.join(u::as_result);
    CHECK((co_await join).error().value() == EINVAL);
    handle = u::spawn(after(0ns));
    auto once = handle.join(u::as_result);
    CHECK(*co_await once == 7);
    CHECK((co_await once).error().value() == EINVAL);
    // The handle is moved, detached, assigned or destroyed during a wait.
    for (int kind = 0; kind < 4; ++kind) {
      auto left = std::make_unique<u::join_handle<int>>(u::spawn(after(20ms)));
      auto waiter = u::spawn(join_of(*left));
      co_await u::sleep(2ms);
      u::join_handle<int> other;
      if (kind == 0) other = std::move(*left);
      if (kind == 1) left->detach();
      if (kind == 2) *left = u::spawn(after(0ns));
      if (kind == 3) left.reset();
      CHECK((*co_await u::timeout(30s, waiter)).error().value() == EINVAL);
      if (kind == 0) CHECK(*co_await u::timeout(30s, other) == 7);
      if (kind == 2) CHECK(*co_await u::timeout(30s, *left) == 7);
    }
    // A cancelled wait leaves the handle to the next waiter.
    auto kept = u::spawn(after(20ms));
    CHECK(!co_await u::timeout(1ms, kept));
    auto gives_up = u::spawn(join_of(kept));
    co_await u::sleep(1ms);
    gives_up.cancel();
    CHECK(!co_await gives_up.join(u::as_result));
    CHECK(*co_await u::timeout(30s, kept) == 7);
  }());
}

namespace {

using years = std::chrono::duration<std::int64_t, std::ratio<31'556'952>>;
using u::detail::infinite;
using u::detail::nanoseconds_of;
using u::detail::abi_duration;

constexpr auto max_count = std::numeric_limits<std::int64_t>::max();
constexpr auto min_count = std::numeric_limits<std::int64_t>::min();
static_assert(nanoseconds_of(1h) == 3'600'000'000'000);
static_assert(nanoseconds_of(-1ns) == -1);
static_assert(nanoseconds_of(std::chrono::duration<std::int64_t, std::pico>(1)) == 1);
static_assert(nanoseconds_of(std::chrono::duration<std::int64_t, std::pico>(2000)) == 2);
static_assert(nanoseconds_of(std::chrono::duration<std::int64_t, std::pico>(-1)) == 0);
static_assert(nanoseconds_of(std::chrono::duration<int, std::ratio<1, 3>>(1)) == 333'333'334);
static_assert(nanoseconds_of(std::chrono::duration<double>(0.5)) == 500'000'000);
static_assert(nanoseconds_of(std::chrono::duration<double>(std::numeric_limits<double>::infinity())) == infinite);
static_assert(nanoseconds_of(std::chrono::duration<double>(-std::numeric_limits<double>::infinity())) == -infinite);
static_assert(abi_duration(nanoseconds_of(std::chrono::hours::max())) == UINT64_MAX);
static_assert(abi_duration(nanoseconds_of(years(max_count))) == UINT64_MAX);
static_assert(abi_duration(nanoseconds_of(years(min_count))) == 0);
static_assert(abi_duration(nanoseconds_of(std::chrono::duration<std::uint64_t>(UINT64_MAX))) == UINT64_MAX);
static_assert(nanoseconds_of(std::chrono::nanoseconds::max()) == max_count);
static_assert(nanoseconds_of(std::chrono::nanoseconds::min()) == min_count);
static_assert(nanoseconds_of(std::chrono::duration<std::int64_t, std::ratio<max_count, max_count - 1>>(1)) == 1'000'000'001);

/// A clock whose present is at the limit of its range.
template <std::int64_t Now>
struct clock_at {
  using duration = std::chrono::seconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<clock_at>;
  static constexpr bool is_steady = true;
  static time_point now() { return time_point(duration(Now)); }
};

}  // namespace

TEST(a_distant_time_point_never_ends_a_wait_and_a_past_time_point_ends_it_at_once) {
  on_one_vcpu([]() -> u::task<> {
    const auto is_pending = [](auto deadline) -> u::task<bool> { co_return !co_await u::timeout(3ms, u::sleep_until(deadline)); };
    using steady = std::chrono::steady_clock;
    using system = std::chrono::system_clock;
    CHECK(co_await is_pending(steady::time_point::max()));
    CHECK(co_await is_pending(system::time_point::max()));
    CHECK(!co_await is_pending(steady::time_point::min()));
    CHECK(!co_await is_pending(system::time_point::min()));
    CHECK(!co_await is_pending(steady::time_point()));
    CHECK(co_await is_pending(std::chrono::time_point<system, std::chrono::hours>::max()));
    CHECK(!co_await is_pending(std::chrono::time_point<system, std::chrono::hours>::min()));
    CHECK(co_await is_pending(std::chrono::time_point<system, years>(years(max_count))));
    CHECK(!co_await is_pending(std::chrono::time_point<system, years>(years(min_count))));
    CHECK(co_await is_pending(std::chrono::time_point<system, std::chrono::duration<double>>(std::chrono::duration<double>(1e300))));
    CHECK(!co_await is_pending(std::chrono::time_point<system, std::chrono::duration<double>>(std::chrono::duration<double>(-1e300))));
    using last = clock_at<max_count>;
    CHECK(!co_await is_pending(last::time_point::min()));
    CHECK(!co_await is_pending(last::now()));
    using first = clock_at<min_count>;
    CHECK(co_await is_pending(first::time_point::max()));
    CHECK(!co_await is_pending(first::now() + 1s - 1s));
    CHECK(!co_await u::timeout(3ms, u::sleep(std::chrono::hours::max())));
    CHECK(!co_await u::timeout(3ms, u::sleep(years(max_count))));
    co_await u::sleep(std::chrono::hours::min());
    co_await u::sleep(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN()));
    CHECK(co_await u::timeout(std::chrono::hours::max(), u::sleep(1ms)));
    CHECK(!co_await u::timeout(std::chrono::hours::min(), u::sleep(1h)));
    // A near time point is waited for.
    const auto deadline = std::chrono::time_point_cast<std::chrono::duration<double>>(steady::now()) + 3ms;
    co_await u::sleep_until(deadline);
    CHECK(steady::now() >= deadline);
  }());
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
