// Waiting for time to pass, or not longer than so much.
#pragma once

#include <chrono>

#include "several.hpp"

UPSHIFT_BEGIN

namespace detail {

inline std::uint64_t nanoseconds(std::chrono::nanoseconds duration) noexcept {
  return duration.count() < 0 ? 0 : static_cast<std::uint64_t>(duration.count());
}

}  // namespace detail

/// Waits for a duration.
[[nodiscard("co_await it")]] inline auto sleep(std::chrono::nanoseconds duration) {
  return detail::operation([ns = detail::nanoseconds(duration)](upshift_op* op, upshift_cx* cx) { return upshift_sleep(op, cx, ns); },
                           [](upshift_op& op) { return detail::checked<throwing_t>(op.result, [] {}); });
}

/// Waits until a point of time of any clock, as that clock is when it begins.
template <class Clock, class Duration>
[[nodiscard("co_await it")]] auto sleep_until(std::chrono::time_point<Clock, Duration> when) {
  return sleep(std::chrono::ceil<std::chrono::nanoseconds>(when - Clock::now()));
}

namespace detail {

template <class Branch>
struct [[nodiscard("co_await it")]] timed : waiting {
  template <class From>
  timed(std::chrono::nanoseconds limit, From&& from) noexcept : waiting{again}, of(std::forward<From>(from)), limit(nanoseconds(limit)) {
    clock.vtable = nullptr;
  }
  timed(const timed&) = delete;
  ~timed() {
    if (clock.vtable != nullptr) upshift_op_drop(&clock);
  }

  bool await_ready() const noexcept { return false; }
  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    upshift_cx* cx = here.promise().root->cx;
    if (of.step(cx)) return false;
    if (upshift_sleep(&clock, cx, limit) != 0) {
      late = true;
      of.stop();
      return false;
    }
    promise_base::wait_for(here, this);
    return true;
  }
  auto await_resume() {
    using T = typename Branch::value_type;
    if constexpr (std::is_void_v<T>) {
      if (late) return false;
      of.kept.take();
      return true;
    } else {
      if (late) return std::optional<T>();
      return std::optional<T>(of.kept.take());
    }
  }

  static int again(waiting* what, upshift_cx* cx) noexcept {
    auto* self = static_cast<timed*>(what);
    if (self->of.step(cx)) return 1;
    if (upshift_op_poll(&self->clock, cx) == 0) return 0;
    self->late = true;
    self->of.stop();
    return 1;
  }

  Branch of;
  std::uint64_t limit;
  bool late = false;
  upshift_op clock;
};

}  // namespace detail

/// An operation, a task or the end of a coroutine (`handle.join()`) for so long at most: none (of what has no value: false) if it was not ready then. An operation is
/// cancelled, the frames of a task are destroyed, and a coroutine goes on with its handle as it was.
///
///     if (auto data = co_await upshift::timeout(50ms, stream.recv())) …
template <detail::branchable Of>
auto timeout(std::chrono::nanoseconds limit, Of&& of) {
  return detail::timed<detail::branch<std::remove_cvref_t<Of>>>(limit, std::forward<Of>(of));
}

/// The same for the end of a coroutine.
template <class T>
auto timeout(std::chrono::nanoseconds limit, join_handle<T>& of) {
  return detail::timed<detail::branch<join_handle<T>>>(limit, of);
}

UPSHIFT_END
