// Coroutines of the runtime: spawn at a level, join, cancel, ids, yielding.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <type_traits>

#include "task.hpp"

UPSHIFT_BEGIN

/// A level: 0 is the most urgent, 63 the least. Five levels have names.
struct level {
  static const level urgent, high, normal, low, background;
  int value;
  constexpr explicit level(int n) noexcept : value(n) {}
  friend constexpr bool operator==(level, level) = default;
};

inline constexpr level level::urgent{UPSHIFT_LEVEL_URGENT};
inline constexpr level level::high{UPSHIFT_LEVEL_HIGH};
inline constexpr level level::normal{UPSHIFT_LEVEL_NORMAL};
inline constexpr level level::low{UPSHIFT_LEVEL_LOW};
inline constexpr level level::background{UPSHIFT_LEVEL_BACKGROUND};

/// The level of the spawning coroutine.
inline constexpr level inherit{UPSHIFT_INHERIT};

/// The id of a coroutine, which is never reused.
enum class cid : std::uint64_t { none = UPSHIFT_NO_CID };

/// The exception of an await of a coroutine that was cancelled.
class cancelled : public std::system_error {
 public:
  cancelled() : std::system_error(ECANCELED, std::system_category(), "the coroutine was cancelled") {}
};

/// Access to a runtime from outside: spawns, wakes and cancels from any thread. After the end of
/// the runtime the calls fail with ESHUTDOWN or ESRCH. Every call of an empty handle fails with
/// EINVAL, and its counters are 0.
class handle {
 public:
  /// Returns the handle of the calling coroutine's runtime; empty outside a runtime.
  static handle current() noexcept { return handle(upshift_handle_current()); }

  handle() noexcept = default;
  explicit handle(upshift_handle* raw) noexcept : raw_(raw) {}
  handle(handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  handle(const handle& other) noexcept : raw_(other.raw_ != nullptr ? upshift_handle_clone(other.raw_) : nullptr) {}
  handle& operator=(handle other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~handle() {
    if (raw_ != nullptr) upshift_handle_free(raw_);
  }

  explicit operator bool() const noexcept { return raw_ != nullptr; }
  upshift_handle* get() const noexcept { return raw_; }

  result<void> wake(cid id) const noexcept { return to_result(raw_ == nullptr ? -EINVAL : upshift_wake(raw_, static_cast<std::uint64_t>(id))); }
  result<void> cancel(cid id) const noexcept { return to_result(raw_ == nullptr ? -EINVAL : upshift_cancel(raw_, static_cast<std::uint64_t>(id))); }
  result<void> reprio(cid id, level to) const noexcept { return to_result(raw_ == nullptr ? -EINVAL : upshift_reprio(raw_, static_cast<std::uint64_t>(id), to.value)); }

  upshift_metrics metrics() const noexcept {
    upshift_metrics counters{};
    if (raw_ != nullptr) upshift_metrics_get(raw_, &counters);
    return counters;
  }
  upshift_level_metrics metrics(level n) const noexcept {
    upshift_level_metrics counters{};
    if (raw_ != nullptr) upshift_metrics_level(raw_, static_cast<std::uint32_t>(n.value), &counters);
    return counters;
  }
  /// Returns all metrics in the text format of Prometheus.
  std::string prometheus() const {
    if (raw_ == nullptr) return std::string();
    std::unique_ptr<char, void (*)(char*)> text(upshift_metrics_prometheus(raw_), [](char* t) { upshift_string_free(t); });
    return text ? std::string(text.get()) : std::string();
  }

 private:
  static result<void> to_result(int code) noexcept { return code < 0 ? result<void>::failure(code) : result<void>(); }

  upshift_handle* raw_ = nullptr;
};

namespace detail {

/// The waiter for the coroutine of a join handle.
struct join_waiter : waiting {
  /// Ends the wait, because the handle has been moved, detached or destroyed. Called in a coroutine
  /// of the runtime.
  void end_wait() noexcept {
    is_over = true;
    upshift_wake(nullptr, waiter_id);
  }
  bool is_over = false;
  std::uint64_t waiter_id = UPSHIFT_NO_CID;
};

}  // namespace detail

/// The right to the result of a coroutine. The destructor detaches the coroutine. A handle is
/// awaited once: afterwards it is empty, and an await fails with EINVAL. A waiter gets EINVAL too
/// when the handle is moved or detached. While a coroutine waits, another await fails with EBUSY.
template <class T = void>
class [[nodiscard("destroying the handle detaches the coroutine; say so with detach()")]] join_handle {
 public:
  join_handle() noexcept = default;
  explicit join_handle(const upshift_join& raw) noexcept : raw_(raw), held_(true) {}
  join_handle(join_handle&& other) noexcept : raw_(other.raw_), held_(std::exchange(other.held_, false)) { other.end_wait(); }
  join_handle& operator=(join_handle&& other) noexcept {
    if (this != &other) {
      detach();
      raw_ = other.raw_;
      held_ = std::exchange(other.held_, false);
      other.end_wait();
    }
    return *this;
  }
  ~join_handle() { detach(); }

  /// Returns false if the result has been taken or discarded.
  explicit operator bool() const noexcept { return held_; }
  upshift::cid id() const noexcept { return held_ ? upshift::cid{upshift_join_cid(&raw_)} : upshift::cid::none; }
  bool is_finished() const noexcept { return !held_ || upshift_join_is_finished(&raw_) != 0; }

  /// Cancels the coroutine: when it is next due its frames are destroyed, innermost first, and the
  /// operation that it waits for is cancelled.
  void cancel() const noexcept {
    if (held_) upshift_join_cancel(&raw_);
  }

  void detach() noexcept {
    if (std::exchange(held_, false)) upshift_join_free(&raw_);
    end_wait();
  }

  /// Waits for the coroutine, and lends it the waiter's level if that is more urgent. Returns its
  /// result or throws its exception. If the coroutine was cancelled, throws `cancelled`; a result
  /// then has the error ECANCELED.
  template <error_mode M = throwing_t>
  auto join(M = {}) noexcept {
    return awaiter<M>(*this);
  }
  auto operator co_await() noexcept { return awaiter<throwing_t>(*this); }

 private:
  template <error_mode M>
  struct awaiter : detail::join_waiter {
    explicit awaiter(join_handle& handle) noexcept : join_waiter{{poll_again}}, handle(&handle) {}
    awaiter(const awaiter&) = delete;
    awaiter& operator=(const awaiter&) = delete;
    ~awaiter() {
      stop();
      free();
    }

    bool await_ready() const noexcept { return false; }
    template <detail::upshift_promise Promise>
    bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
      if (begin(here.promise().root->cx)) return false;
      detail::promise_base::wait_for(here, this);
      return true;
    }
    auto await_resume() {
      const int end_code = std::exchange(code, -EINVAL);
#if UPSHIFT_EXCEPTIONS
      if constexpr (M::throws) {
        if (end_code == -ECANCELED) throw cancelled();
      }
#endif
      return detail::value_or_error<M>(end_code, [this]() -> T {
        struct guard {
          awaiter& owner;
          ~guard() { owner.free(); }
        } guard{*this};
        return detail::rooted<T>::take(data);
      });
    }

    /// Begins the wait, as part of a wait for several awaitables. Cancellation leaves the handle
    /// unchanged.
    bool begin(upshift_cx* cx) noexcept {
      // On the second call, if the coroutine has ended or has another waiter, `code` has the error.
      if (std::exchange(has_begun, true)) return true;
      if (!handle->held_) return true;
      if (handle->waiter_ != nullptr) {
        code = -EBUSY;
        return true;
      }
      if (poll_again(this, cx) != 0) return true;
      waiter_id = upshift_get_cid();
      handle->waiter_ = this;
      return false;
    }
    bool poll(upshift_cx* cx) noexcept { return poll_again(this, cx) != 0; }
    void stop() noexcept {
      if (!is_over && handle->waiter_ == this) handle->waiter_ = nullptr;
      is_over = true;
    }

    static int poll_again(detail::waiting* wait, upshift_cx* cx) noexcept {
      auto* self = static_cast<awaiter*>(wait);
      if (self->is_over) return 1;
      const int code = upshift_join_poll(&self->handle->raw_, cx, &self->data);
      if (code == 0) return 0;
      self->code = code;
      self->handle->held_ = false;
      self->stop();
      return 1;
    }
    void free() noexcept {
      if (data != nullptr) detail::root_base::drop(std::exchange(data, nullptr));
    }

    join_handle* handle;
    void* data = nullptr;
    int code = -EINVAL;
    bool has_begun = false;
  };

  void end_wait() noexcept {
    if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->end_wait();
  }

  upshift_join raw_{};
  bool held_ = false;
  detail::join_waiter* waiter_ = nullptr;
};

// g++ 12 destroys a closure twice that is created within the awaited expression: once in the
// called function, or in the object that takes it over, and once more in the coroutine's frame.
// The function cannot prevent this, so these checks demand that its result is given a name.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#define UPSHIFT_DESTROYS_CLOSURES_TWICE 1
#define UPSHIFT_NAME_IT                                                                                           \
  "g++ 12 destroys a closure twice if it is created within a co_await expression: store the returned object in a variable first, " \
  "as in `auto handle = upshift::spawn([keep] { ... }); co_await handle;`"
#else
#define UPSHIFT_DESTROYS_CLOSURES_TWICE 0
#endif

namespace detail {

template <class>
inline constexpr bool never = false;

/// True if F, the parameter of `F&& f`, is a closure that owns an object and has no name. Closures
/// and aggregates have no constructor of their own; std::function has one.
template <class F>
inline constexpr bool is_destroyed_twice = UPSHIFT_DESTROYS_CLOSURES_TWICE && !std::is_reference_v<F> && !std::is_trivially_destructible_v<F> &&
                                   (std::is_aggregate_v<F> || !std::is_default_constructible_v<F>);

#if UPSHIFT_DESTROYS_CLOSURES_TWICE
/// A handle that cannot be awaited before it has a name.
template <class T>
class [[nodiscard("destroying the handle detaches the coroutine; say so with detach()")]] handle_to_name : public join_handle<T> {
 public:
  handle_to_name(join_handle<T>&& other) noexcept : join_handle<T>(std::move(other)) {}
  template <error_mode M = throwing_t>
  auto join(M mode = {}) & noexcept {
    return join_handle<T>::join(mode);
  }
  auto operator co_await() & noexcept { return join_handle<T>::operator co_await(); }

  template <error_mode M = throwing_t>
  auto join(M mode = {}) && noexcept {
    static_assert(never<M>, UPSHIFT_NAME_IT);
    return join_handle<T>::join(mode);
  }
  template <class U = T>
  auto operator co_await() && noexcept {
    static_assert(never<U>, UPSHIFT_NAME_IT);
    return join_handle<T>::operator co_await();
  }
};
#endif

/// Returns the handle of a coroutine that was started with a closure of type F.
template <class F, class T>
auto handle_for(join_handle<T>&& handle) noexcept {
#if UPSHIFT_DESTROYS_CLOSURES_TWICE
  if constexpr (is_destroyed_twice<F>) {
    return handle_to_name<T>(std::move(handle));
  } else {
    return std::move(handle);
  }
#else
  return std::move(handle);
#endif
}
template <class F, class T>
auto handle_for(result<join_handle<T>>&& handle) noexcept {
  return std::move(handle);
}

template <error_mode M, class T>
auto spawn_in(upshift_handle* in, task<T> work, level priority) {
  upshift_join join;
  int code;
  const upshift_task root = as_root(std::move(work), code);
  if (code == 0) code = upshift_spawn(in, root, priority.value, &join);
  return value_or_error<M>(code, [&] { return join_handle<T>(join); }, code == -ENXIO ? "upshift::spawn outside a runtime" : nullptr);
}

template <error_mode M, class T>
auto spawn_in(const handle& in, task<T> work, level priority) {
  if (!in) return value_or_error<M>(-EINVAL, [] { return join_handle<T>(); }, "upshift::spawn by an empty handle");
  return spawn_in<M>(in.get(), std::move(work), priority);
}

template <class F>
concept makes_task = std::invocable<std::decay_t<F>&> && is_task<std::invoke_result_t<std::decay_t<F>&>>;

/// Stores the captures of a lambda while its coroutine runs.
template <class F, class T = typename std::invoke_result_t<F&>::value_type>
task<T> keeping(F make) {
  co_return co_await make();
}

}  // namespace detail

/// Starts a coroutine at a level, in the caller's runtime. It may run on any vCPU.
template <class T, error_mode M = throwing_t>
auto spawn(task<T> work, level priority = inherit, M = {}) {
  return detail::spawn_in<M>(static_cast<upshift_handle*>(nullptr), std::move(work), priority);
}

/// Starts a coroutine in the runtime of a handle, from any thread.
template <class T, error_mode M = throwing_t>
auto spawn(const handle& in, task<T> work, level priority = inherit, M = {}) {
  return detail::spawn_in<M>(in, std::move(work), priority);
}

/// Starts the task that a function returns. The captures live as long as the coroutine.
template <detail::makes_task F, error_mode M = throwing_t>
auto spawn(F&& make, level priority = inherit, M = {}) {
  return detail::handle_for<F>(detail::spawn_in<M>(static_cast<upshift_handle*>(nullptr), detail::keeping<std::decay_t<F>>(std::forward<F>(make)), priority));
}

/// Starts the task that a function returns in the runtime of a handle, from any thread.
template <detail::makes_task F, error_mode M = throwing_t>
auto spawn(const handle& in, F&& make, level priority = inherit, M = {}) {
  return detail::handle_for<F>(detail::spawn_in<M>(in, detail::keeping<std::decay_t<F>>(std::forward<F>(make)), priority));
}

#define UPSHIFT_SAY_LEVEL "upshift::spawn: a level is not a number: write `level{4}`, 0 being the most urgent and 63 the least"

/// Wraps a task that is cancelled when a stop is requested, on any thread.
template <class T>
task<T> with_stop(std::stop_token token, task<T> work) {
  auto cancel = [in = handle::current(), id = cid{upshift_get_cid()}] { (void)in.cancel(id); };
  std::stop_callback<decltype(cancel)> callback(std::move(token), std::move(cancel));
  co_return co_await std::move(work);
}

/// Starts a coroutine that is cancelled when a stop is requested; an earlier request cancels it at
/// its first wait.
template <class T, error_mode M = throwing_t>
auto spawn(std::stop_token token, task<T> work, level priority = inherit, M mode = {}) {
  // An empty task fails now.
  if (!work) return spawn(std::move(work), priority, mode);
  return detail::spawn_in<M>(static_cast<upshift_handle*>(nullptr), with_stop(std::move(token), std::move(work)), priority);
}

/// Starts the task that a function returns, and cancels it when a stop is requested.
template <detail::makes_task F, error_mode M = throwing_t>
auto spawn(std::stop_token token, F&& make, level priority = inherit, M = {}) {
  return detail::handle_for<F>(
      detail::spawn_in<M>(static_cast<upshift_handle*>(nullptr), with_stop(std::move(token), detail::keeping<std::decay_t<F>>(std::forward<F>(make))), priority));
}

/// Refuses a number in place of a level.
template <class Work, std::integral Number>
auto spawn(Work&&, Number) {
  static_assert(detail::never<Number>, UPSHIFT_SAY_LEVEL);
  return join_handle<>();
}
template <class Target, class Work, std::integral Number>
auto spawn(Target&&, Work&&, Number) {
  static_assert(detail::never<Number>, UPSHIFT_SAY_LEVEL);
  return join_handle<>();
}
#undef UPSHIFT_SAY_LEVEL

/// Returns the id of the calling coroutine.
inline cid get_cid() noexcept { return cid{upshift_get_cid()}; }

/// Returns the effective level of the calling coroutine, or a negative errno outside a coroutine.
inline int current_level() noexcept { return upshift_current_level(); }

/// Wakes a coroutine of the caller's runtime. Returns false if it has exited.
inline bool wake(cid id) noexcept { return upshift_wake(nullptr, static_cast<std::uint64_t>(id)) == 0; }

/// Changes the level of a coroutine, in any state. Returns false if it has exited, or if the level
/// is invalid.
inline bool reprio(cid id, level to) noexcept { return upshift_reprio(nullptr, static_cast<std::uint64_t>(id), to.value) == 0; }

/// Cancels a coroutine. Returns false if it has exited.
inline bool cancel(cid id) noexcept { return upshift_cancel(nullptr, static_cast<std::uint64_t>(id)) == 0; }

namespace detail {

struct yield_awaiter {
  bool needed;
  bool await_ready() const noexcept { return !needed; }
  template <upshift_promise Promise>
  void await_suspend(std::coroutine_handle<Promise> here) const noexcept {
    upshift_yield_now(here.promise().root->cx);
    promise_base::wait_for(here, &next_poll);
  }
  void await_resume() const noexcept {}
};

struct park_awaiter {
  bool await_ready() const noexcept { return false; }
  template <upshift_promise Promise>
  void await_suspend(std::coroutine_handle<Promise> here) const noexcept {
    promise_base::wait_for(here, &next_poll);
  }
  void await_resume() const noexcept {}
};

}  // namespace detail

/// Lets ready coroutines of the same level run first.
[[nodiscard("co_await it")]] inline auto yield_now() noexcept { return detail::yield_awaiter{true}; }

/// Yields if work at least as urgent waits. Meant for loops that compute.
[[nodiscard("co_await it")]] inline auto yield_if_needed() noexcept { return detail::yield_awaiter{upshift_should_yield() != 0}; }

/// Waits for a wake(cid) of this coroutine. Like a condition variable it may return early: check
/// the condition in a loop.
[[nodiscard("co_await it")]] inline auto park() noexcept { return detail::park_awaiter{}; }

/// The right to wake a coroutine, from any thread, at any later time.
class waker {
 public:
  explicit waker(upshift_cx* cx) noexcept : held_(true) { upshift_waker_new(cx, &raw_); }
  waker(waker&& other) noexcept : raw_(other.raw_), held_(std::exchange(other.held_, false)) {}
  waker& operator=(waker&&) = delete;
  ~waker() {
    if (held_) upshift_waker_free(&raw_);
  }
  void wake() const noexcept {
    if (held_) upshift_waker_wake(&raw_);
  }

 private:
  upshift_waker raw_{};
  bool held_ = false;
};

namespace detail {

template <class F>
struct suspend_awaiter {
  F leave;
  bool await_ready() const noexcept { return false; }
  template <upshift_promise Promise>
  void await_suspend(std::coroutine_handle<Promise> here) {
    // This call is first, because it may throw into the coroutine, which then does not wait.
    leave(waker(here.promise().root->cx));
    promise_base::wait_for(here, &next_poll);
  }
  void await_resume() const noexcept {}
};

#if UPSHIFT_DESTROYS_CLOSURES_TWICE
template <class Awaiter>
class suspend_to_name {
 public:
  template <class F>
  explicit suspend_to_name(F&& leave) : awaiter_{std::forward<F>(leave)} {}
  Awaiter& operator co_await() & noexcept { return awaiter_; }
  template <class U = Awaiter>
  Awaiter& operator co_await() && noexcept {
    static_assert(never<U>, UPSHIFT_NAME_IT);
    return awaiter_;
  }

 private:
  Awaiter awaiter_;
};
#endif

}  // namespace detail

/// Passes a waker to `leave` and waits until the waker is used: a callback that gets the waker
/// thereby continues the coroutine. The wait may return early, like park().
template <std::invocable<waker> F>
[[nodiscard("co_await it")]] auto suspend(F&& leave) {
  using awaiter = detail::suspend_awaiter<std::decay_t<F>>;
#if UPSHIFT_DESTROYS_CLOSURES_TWICE
  if constexpr (detail::is_destroyed_twice<F>) {
    return detail::suspend_to_name<awaiter>(std::forward<F>(leave));
  } else {
    return awaiter{std::forward<F>(leave)};
  }
#else
  return awaiter{std::forward<F>(leave)};
#endif
}

namespace detail {

template <class F, class T>
struct job final : rooted<T> {
  template <class From>
  explicit job(From&& from) : function(std::forward<From>(from)) {
    this->destroy = [](root_base* root) noexcept { delete static_cast<job*>(root); };
  }
  static int run(void* data, upshift_cx*) noexcept {
    auto* self = static_cast<job*>(static_cast<root_base*>(data));
#if UPSHIFT_EXCEPTIONS
    try {
      self->call();
    } catch (...) {
      self->thrown = std::current_exception();
    }
#else
    self->call();
#endif
    return 1;
  }
  void call() {
    if constexpr (std::is_void_v<T>) {
      function();
    } else {
      this->value.emplace(function());
    }
  }
  F function;
};

}  // namespace detail

/// Runs a blocking function on a thread for blocking calls, more urgent functions first. Await the
/// handle for its result. The function is not ended early.
template <class F, error_mode M = throwing_t>
  requires std::invocable<std::decay_t<F>&>
auto blocking(F&& function, M = {}) {
  using T = std::invoke_result_t<std::decay_t<F>&>;
  using job = detail::job<std::decay_t<F>, T>;
  detail::root_base* root = new job(std::forward<F>(function));
  upshift_join join;
  const upshift_task as_task{root, [](void* d, upshift_cx* c) { return job::run(d, c); }, [](void* d) { detail::root_base::drop(d); }};
  const int code = upshift_spawn_blocking(as_task, &join);
  return detail::handle_for<F>(detail::value_or_error<M>(code, [&] { return join_handle<T>(join); }));
}

UPSHIFT_END
