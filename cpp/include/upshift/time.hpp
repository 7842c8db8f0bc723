// Sleeping, and waits with a time limit.
#pragma once

#include <chrono>
#include <limits>
#include <numeric>
#include <ratio>

#include "several.hpp"

UPSHIFT_BEGIN

namespace detail {

__extension__ typedef __int128 int128;

/// The limit beyond which a duration, positive or negative, is infinite. The time since the epoch
/// of any clock is less.
inline constexpr int128 infinite = int128{1} << 94;

/// Converts to whole nanoseconds, rounded up. No value of any clock, in any unit, overflows.
template <class Rep, class Period>
constexpr int128 nanoseconds_of(std::chrono::duration<Rep, Period> duration) noexcept {
  // The unit is num/den ns.
  constexpr std::intmax_t common = std::gcd(Period::den, std::nano::den);
  constexpr int128 num = int128{Period::num} * (std::nano::den / common);
  constexpr int128 den = Period::den / common;
  const auto count = duration.count();
  const long double approximate = static_cast<long double>(count) * static_cast<long double>(num) / static_cast<long double>(den);
  if (approximate >= static_cast<long double>(infinite)) return infinite;
  // NaN counts as the past.
  if (!(approximate > -static_cast<long double>(infinite))) return -infinite;
  if constexpr (std::chrono::treat_as_floating_point_v<Rep> || num > (infinite << 32) / den) {
    const int128 whole = static_cast<int128>(approximate);
    return whole + (static_cast<long double>(whole) < approximate ? 1 : 0);
  } else {
    const int128 units = static_cast<int128>(count);
    const int128 whole = units / den * num;
    const int128 rest = units % den * num;
    return whole + rest / den + (rest > 0 && rest % den != 0 ? 1 : 0);
  }
}

/// Converts a duration for the ABI: a negative duration becomes 0.
constexpr std::uint64_t abi_duration(int128 nanoseconds) noexcept {
  if (nanoseconds <= 0) return 0;
  constexpr int128 max = std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(nanoseconds < max ? nanoseconds : max);
}

inline auto sleep_for(std::uint64_t ns) {
  return operation([ns](upshift_op* op, upshift_cx* cx) { return upshift_sleep(op, cx, ns); },
                   [](upshift_op& op) { return value_or_error<throwing_t>(op.result, [] {}); });
}

}  // namespace detail

/// Waits for a duration of any unit. A duration that is not positive ends at once; a duration of
/// 584 years never ends.
template <class Rep, class Period>
[[nodiscard("co_await it")]] auto sleep(std::chrono::duration<Rep, Period> duration) {
  return detail::sleep_for(detail::abi_duration(detail::nanoseconds_of(duration)));
}

/// Waits until a time point of any clock, which is read at the call. A past time point ends the
/// wait at once; a time point that is 584 years away never ends it.
template <class Clock, class Duration>
[[nodiscard("co_await it")]] auto sleep_until(std::chrono::time_point<Clock, Duration> deadline) {
  const detail::int128 now = detail::nanoseconds_of(Clock::now().time_since_epoch());
  return detail::sleep_for(detail::abi_duration(detail::nanoseconds_of(deadline.time_since_epoch()) - now));
}

/// The result of timeout() for a value that is a std::optional itself, such as the next message of
/// a channel. Empty after a timeout (`timed_out()`) and without a value.
template <class T>
class timed_optional : public std::optional<T> {
 public:
  /// Creates the result of a wait that timed out.
  timed_optional() noexcept : timed_out_(true) {}
  explicit timed_optional(std::optional<T>&& value) : std::optional<T>(std::move(value)) {}

  bool timed_out() const noexcept { return timed_out_; }

 private:
  bool timed_out_ = false;
};

namespace detail {

/// The result of timeout() for a value of type T.
template <class T>
struct timeout_result {
  using type = std::optional<T>;
};
template <class T>
struct timeout_result<std::optional<T>> {
  using type = timed_optional<T>;
};

template <class Branch>
struct [[nodiscard("co_await it")]] timed : waiting {
  template <class From>
  timed(std::uint64_t limit, From&& from) noexcept : waiting{poll_again}, inner(std::forward<From>(from)), limit(limit) {
    clock.vtable = nullptr;
  }
  timed(const timed&) = delete;
  // The awaitable ends with the expression that has created this object.
  single_await<timed> operator co_await() && noexcept { return single_await<timed>(*this); }
  void operator co_await() & = delete;
  ~timed() {
    if (clock.vtable != nullptr) upshift_op_drop(&clock);
  }

  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    upshift_cx* cx = here.promise().root->cx;
    if (inner.step(cx)) return false;
    if (upshift_sleep(&clock, cx, limit) != 0) {
      timed_out = true;
      inner.stop();
      return false;
    }
    promise_base::wait_for(here, this);
    return true;
  }
  auto await_resume() {
    using T = typename Branch::value_type;
    take_once(is_taken);
    if constexpr (std::is_void_v<T>) {
      if (timed_out) return false;
      inner.captured.take();
      return true;
    } else {
      using limited = typename timeout_result<T>::type;
      if (timed_out) return limited();
      return limited(inner.captured.take());
    }
  }

  static int poll_again(waiting* wait, upshift_cx* cx) noexcept {
    auto* self = static_cast<timed*>(wait);
    if (self->inner.step(cx)) return 1;
    if (upshift_op_poll(&self->clock, cx) == 0) return 0;
    self->timed_out = true;
    self->inner.stop();
    return 1;
  }

  Branch inner;
  std::uint64_t limit;
  bool timed_out = false;
  bool is_taken = false;
  upshift_op clock;
};

}  // namespace detail

/// Waits for an operation, a task or the end of a coroutine (`handle.join()`), with a time limit.
/// Returns a std::optional, which is empty after a timeout; a bool if there is no value; a
/// timed_optional if the value is a std::optional itself. A timeout cancels an operation and
/// destroys the frames of a task; a coroutine continues and its handle is unchanged.
///
///     if (auto data = co_await upshift::timeout(50ms, stream.recv())) …
template <class Rep, class Period, detail::branchable Awaitable>
auto timeout(std::chrono::duration<Rep, Period> limit, Awaitable&& awaitable) {
  return detail::timed<detail::branch<std::remove_cvref_t<Awaitable>>>(detail::abi_duration(detail::nanoseconds_of(limit)), std::forward<Awaitable>(awaitable));
}

/// Waits for the end of a coroutine, with a time limit.
template <class Rep, class Period, class T>
auto timeout(std::chrono::duration<Rep, Period> limit, join_handle<T>& handle) {
  return detail::timed<detail::branch<join_handle<T>>>(detail::abi_duration(detail::nanoseconds_of(limit)), handle);
}

UPSHIFT_END
