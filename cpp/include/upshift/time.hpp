// Waiting for time to pass, or not longer than so much.
#pragma once

#include <chrono>

#include "task.hpp"

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

namespace detail {

template <class Operation>
struct [[nodiscard("co_await it")]] timed : waiting {
  timed(std::chrono::nanoseconds limit, Operation& of) noexcept : waiting{again}, of(of), limit(nanoseconds(limit)) { clock.vtable = nullptr; }
  timed(const timed&) = delete;
  ~timed() {
    if (clock.vtable != nullptr) upshift_op_drop(&clock);
  }

  bool await_ready() const noexcept { return false; }
  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    upshift_cx* cx = here.promise().root->cx;
    if (of.begin(cx)) return false;
    if (upshift_sleep(&clock, cx, limit) != 0) {
      late = true;
      of.stop();
      return false;
    }
    promise_base::wait_for(here, this);
    return true;
  }
  auto await_resume() {
    using T = decltype(of.await_resume());
    if constexpr (std::is_void_v<T>) {
      if (late) return false;
      of.await_resume();
      return true;
    } else {
      if (late) return std::optional<T>();
      return std::optional<T>(of.await_resume());
    }
  }

  static int again(waiting* what, upshift_cx* cx) noexcept {
    auto* self = static_cast<timed*>(what);
    if (self->of.poll(cx)) return 1;
    if (upshift_op_poll(&self->clock, cx) == 0) return 0;
    self->late = true;
    self->of.stop();
    return 1;
  }

  Operation& of;
  std::uint64_t limit;
  bool late = false;
  upshift_op clock;
};

}  // namespace detail

/// An operation for so long at most: none (of an operation without a value: false) if it was not ready then, and was cancelled.
///
///     if (auto data = co_await upshift::timeout(50ms, stream.recv())) …
template <class Start, class Finish>
auto timeout(std::chrono::nanoseconds limit, detail::operation<Start, Finish>&& of) {
  return detail::timed<detail::operation<Start, Finish>>(limit, of);
}

UPSHIFT_END
