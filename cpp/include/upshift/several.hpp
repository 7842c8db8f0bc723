// Waits for several awaitables in one coroutine: for all of them, or for the first.
//
//     auto [user, orders] = co_await upshift::when_all(find_user(id), find_orders(id));
//     auto first = co_await upshift::when_any(stream.recv(), upshift::sleep(1s));
//     // first is a std::variant; first.index() says which
//
// The awaitables run alternately on the vCPU of their coroutine, and cost no allocation beyond
// their frames. Spawn work that should run on other vCPUs, or at other levels.
#pragma once

#include <tuple>
#include <variant>

#include "spawn.hpp"

UPSHIFT_BEGIN

class async_call;

namespace detail {

/// A branch that can be begun, tested for readiness, and abandoned.
template <class Awaitable>
concept operation_like = requires(Awaitable& awaitable, upshift_cx* cx) {
  { awaitable.begin(cx) } -> std::same_as<bool>;
  { awaitable.poll(cx) } -> std::same_as<bool>;
  awaitable.stop();
  awaitable.await_resume();
};

/// An awaitable that may be a branch: an operation, an asynchronous system call, a task, or the end
/// of a coroutine.
template <class Awaitable>
concept branchable = std::is_rvalue_reference_v<Awaitable&&> && (operation_like<Awaitable> || is_task<Awaitable> || std::same_as<Awaitable, async_call>);

/// A branch of a wait. The result is taken as soon as it is ready, so that a cancelled coroutine
/// loses no result.
template <class Derived, class T>
struct branch_base {
  using value_type = T;
  outcome<T> captured;
  bool is_ready = false;
  bool has_begun = false;

  /// Begins or continues the branch; returns true if the result is ready.
  bool step(upshift_cx* cx) noexcept {
    if (is_ready) return true;
    auto& derived = static_cast<Derived&>(*this);
    is_ready = std::exchange(has_begun, true) ? derived.poll(cx) : derived.begin(cx);
    if (is_ready) derived.capture();
    return is_ready;
  }
};

template <class Operation>
using value_of = decltype(std::declval<Operation&>().await_resume());

/// An operation as a branch; it lives in the awaiting expression.
template <class Operation>
struct branch : branch_base<branch<Operation>, value_of<Operation>> {
  explicit branch(Operation&& operation_ref) noexcept : operation_ref(operation_ref) {}
  bool begin(upshift_cx* cx) noexcept { return operation_ref.begin(cx); }
  bool poll(upshift_cx* cx) noexcept { return operation_ref.poll(cx); }
  void stop() noexcept {
    if (this->has_begun && !this->is_ready) operation_ref.stop();
  }
  void capture() noexcept {
#if UPSHIFT_EXCEPTIONS
    try {
      take();
    } catch (...) {
      this->captured.thrown = std::current_exception();
    }
#else
    take();
#endif
  }
  void take() {
    if constexpr (std::is_void_v<value_of<Operation>>) {
      operation_ref.await_resume();
    } else {
      this->captured.value.emplace(operation_ref.await_resume());
    }
  }
  Operation& operation_ref;
};

/// A task as a branch: a tree of its own within its coroutine.
template <class T>
struct branch<task<T>> : branch_base<branch<task<T>>, T> {
  explicit branch(task<T>&& from) noexcept : code(from.code()), subtree(std::move(from)) {}
  bool begin(upshift_cx* cx) noexcept { return poll(cx); }
  bool poll(upshift_cx* cx) noexcept { return code != 0 || root_base::poll(static_cast<root_base*>(&subtree), cx) != 0; }
  void stop() noexcept { subtree.stop(); }
  void capture() noexcept { this->captured = code != 0 ? refused<T>(code) : std::exchange(static_cast<outcome<T>&>(subtree), outcome<T>()); }
  int code;
  tree<T> subtree;
};

/// The end of a coroutine as a branch.
template <class T>
struct branch<join_handle<T>> : branch_base<branch<join_handle<T>>, T> {
  using join = decltype(std::declval<join_handle<T>&>().join());
  explicit branch(join_handle<T>& handle) noexcept : join_awaiter(handle.join()), inner(std::move(join_awaiter)) {}
  bool begin(upshift_cx* cx) noexcept { return join_awaiter.begin(cx); }
  bool poll(upshift_cx* cx) noexcept { return join_awaiter.poll(cx); }
  void stop() noexcept { join_awaiter.stop(); }
  void capture() noexcept { inner.capture(), this->captured = std::move(inner.captured); }
  join join_awaiter;
  branch<join> inner;
};

/// A result in a tuple or a variant.
template <class T>
using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

/// Awaits a temporary object.
template <class Awaitable>
struct single_await {
  explicit single_await(Awaitable& awaitable) noexcept : awaitable(awaitable) {}
  bool await_ready() const noexcept { return awaitable.is_taken; }
  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    return awaitable.await_suspend(here);
  }
  decltype(auto) await_resume() { return awaitable.await_resume(); }
  Awaitable& awaitable;
};

/// Rejects a second await.
inline void take_once(bool& is_taken) {
  if (std::exchange(is_taken, true)) raise(-EINVAL, "upshift: awaited twice");
}

template <class T>
stored<T> take_stored(outcome<T>& from) {
  if constexpr (std::is_void_v<T>) {
    from.take();
    return {};
  } else {
    return from.take();
  }
}

template <class... Branches>
struct [[nodiscard("co_await it")]] all_of : waiting {
  template <class... From>
  explicit all_of(std::in_place_t, From&&... from) : waiting{poll_again}, branches(std::forward<From>(from)...) {}
  all_of(const all_of&) = delete;
  // The awaitables end with the expression that has created this.
  single_await<all_of> operator co_await() && noexcept { return single_await<all_of>(*this); }
  void operator co_await() & = delete;

  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    if (poll_again(this, here.promise().root->cx) != 0) return false;
    promise_base::wait_for(here, this);
    return true;
  }
  std::tuple<stored<typename Branches::value_type>...> await_resume() {
    take_once(is_taken);
    return std::apply([](auto&... items) { return std::tuple<stored<typename Branches::value_type>...>{take_stored(items.captured)...}; }, branches);
  }

  static int poll_again(waiting* wait, upshift_cx* cx) noexcept {
    bool all_ready = true;
    std::apply([&](auto&... items) { ((all_ready = items.step(cx) && all_ready), ...); }, static_cast<all_of*>(wait)->branches);
    return all_ready;
  }

  std::tuple<Branches...> branches;
  bool is_taken = false;
};

template <class... Branches>
struct [[nodiscard("co_await it")]] any_of : waiting {
  template <class... From>
  explicit any_of(std::in_place_t, From&&... from) : waiting{poll_again}, branches(std::forward<From>(from)...) {}
  any_of(const any_of&) = delete;
  // The awaitables end with the expression that has created this.
  single_await<any_of> operator co_await() && noexcept { return single_await<any_of>(*this); }
  void operator co_await() & = delete;

  using value = std::variant<stored<typename Branches::value_type>...>;

  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    if (poll_again(this, here.promise().root->cx) != 0) return false;
    promise_base::wait_for(here, this);
    return true;
  }
  value await_resume() {
    take_once(is_taken);
    return pick<0>();
  }

  static int poll_again(waiting* wait, upshift_cx* cx) noexcept {
    auto& branches = static_cast<any_of*>(wait)->branches;
    const bool is_ready = std::apply([cx](auto&... items) { return (items.step(cx) || ...); }, branches);
    if (is_ready) std::apply([](auto&... items) { (items.stop(), ...); }, branches);
    return is_ready;
  }

  template <std::size_t I>
  value pick() {
    auto& candidate = std::get<I>(branches);
    if constexpr (I + 1 < sizeof...(Branches)) {
      if (!candidate.is_ready) return pick<I + 1>();
    }
    return value(std::in_place_index<I>, take_stored(candidate.captured));
  }

  std::tuple<Branches...> branches;
  bool is_taken = false;
};

}  // namespace detail

/// Waits for all of several operations, tasks and joins, which run alternately. Returns a tuple of
/// their results, with std::monostate for a branch without a value. All branches end; then the
/// first exception, in the order of the parameters, is thrown.
template <detail::branchable... Awaitable>
  requires(sizeof...(Awaitable) > 0)
auto when_all(Awaitable&&... awaitables) {
  return detail::all_of<detail::branch<std::remove_cvref_t<Awaitable>>...>(std::in_place, std::forward<Awaitable>(awaitables)...);
}

/// Waits for the first of several operations, tasks and joins. Returns a variant whose index
/// identifies the branch; if several branches are ready, the earliest parameter wins. The other
/// branches are cancelled as by timeout().
template <detail::branchable... Awaitable>
  requires(sizeof...(Awaitable) > 0)
auto when_any(Awaitable&&... awaitables) {
  return detail::any_of<detail::branch<std::remove_cvref_t<Awaitable>>...>(std::in_place, std::forward<Awaitable>(awaitables)...);
}

UPSHIFT_END
