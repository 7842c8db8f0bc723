// task<T>: a C++ coroutine, and its conversion to a coroutine of the runtime.
//
// A tree of tasks (a task, the task that it awaits, and so on) is one coroutine of the runtime,
// whose control block points to a `root_base`. A poll of this coroutine runs `root_base::poll`:
//
//     poll ─▶ does the tree wait for something? ── yes, and it is not ready ──▶ return 0
//               │ no, or it is ready now
//               ▼
//             resume the innermost coroutine ◀───────────────────┐
//               ├─ it awaits an operation that is not ready ─────┼──▶ return 0: woken later
//               ├─ it awaits a task: that one is innermost now ──┤
//               ├─ it ends: its parent is innermost now ─────────┘
//               └─ it ends and is the first ──▶ return 1: the join handle gets the result
//
// So nothing nests on the stack, however deep the tree is and however long it runs, with every
// compiler and at every level of optimization.
#pragma once

#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <memory>

#include "error.hpp"
#include "frames.hpp"

UPSHIFT_BEGIN

template <class T>
class task;

namespace detail {

template <class T>
upshift_task as_root(task<T> work, int& code) noexcept;
template <class Awaitable>
struct branch;

/// An operation that a tree of tasks waits for.
struct waiting {
  /// Returns 1 if the operation is ready.
  int (*ready)(waiting*, upshift_cx*) noexcept;
};

/// Makes a wait ready at the next poll, whichever wake ended it.
inline int always_ready(waiting*, upshift_cx*) noexcept { return 1; }
inline constinit waiting next_poll{always_ready};

struct promise_base;

/// A tree of tasks as a coroutine of the runtime: `upshift_task::data` points to it.
struct root_base {
  /// The wake token of the poll.
  upshift_cx* cx = nullptr;
  /// The coroutine that is resumed next; null once there is none.
  promise_base* innermost = nullptr;
  /// The pending operation; null if there is none.
  waiting* pending = nullptr;
  bool done = false;
  /// Takes the result out of the tree. The frames end now, and not with the handle.
  void (*finish)(root_base*) noexcept = nullptr;
  void (*destroy)(root_base*) noexcept = nullptr;

  static inline int poll(void* data, upshift_cx* cx) noexcept;

  static void drop(void* data) noexcept {
    auto* root = static_cast<root_base*>(data);
    root->destroy(root);
  }
};

template <class>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<task<T>> = true;

/// The awaiter of a co_await expression: the operand itself, or the result of its operator.
template <class Awaited>
decltype(auto) awaiter_of(Awaited&& awaited) {
  if constexpr (requires { std::forward<Awaited>(awaited).operator co_await(); }) {
    return std::forward<Awaited>(awaited).operator co_await();
  } else if constexpr (requires { operator co_await(std::forward<Awaited>(awaited)); }) {
    return operator co_await(std::forward<Awaited>(awaited));
  } else {
    return static_cast<std::remove_reference_t<Awaited>&>(awaited);
  }
}

template <class Awaiter, class Promise>
concept suspends = requires(Awaiter& awaiter, std::coroutine_handle<Promise> here) { awaiter.await_suspend(here); };

/// The promise type that stands for coroutines of other libraries.
struct foreign_promise {};

/// Awaits through a reference. A reference returned by `await_transform` would suffice, but g++ 12
/// copies the awaiter behind it.
template <class Awaiter>
struct by_reference {
  Awaiter& awaiter;
  bool await_ready() const noexcept(noexcept(awaiter.await_ready())) { return awaiter.await_ready(); }
  template <class Promise>
  auto await_suspend(std::coroutine_handle<Promise> here) const noexcept(noexcept(awaiter.await_suspend(here))) {
    return awaiter.await_suspend(here);
  }
  decltype(auto) await_resume() const { return awaiter.await_resume(); }
};

/// The base of every promise of this library.
struct promise_base {
  /// Null until the task begins.
  root_base* root = nullptr;
  promise_base* parent = nullptr;
  std::coroutine_handle<> self;
  /// The owner's pointer to this frame, in the awaiting frame; null for the first frame, before it
  /// begins and once it has ended.
  promise_base** owner = nullptr;

  /// Suspends the tree until the operation is ready.
  template <class Promise>
  static void wait_for(std::coroutine_handle<Promise> here, waiting* wait) noexcept {
    root_base* root = here.promise().root;
    root->innermost = &here.promise();
    root->pending = wait;
  }

  /// Accepts only awaitables that suspend coroutines of this library. A foreign awaitable resumes
  /// the coroutine on a thread of its choice, while the runtime may be polling it.
  template <class Awaited>
  static decltype(auto) await_transform(Awaited&& awaited) {
    using kind = std::remove_cvref_t<Awaited>;
    static_assert(!is_task<kind> || !std::is_lvalue_reference_v<Awaited>, "upshift: a task is awaited once: write `co_await std::move(task)`");
    using given = decltype(awaiter_of(std::forward<Awaited>(awaited)));
    using awaiter = std::remove_reference_t<given>;
    static_assert(is_task<kind> || (suspends<awaiter, promise_base> && !suspends<awaiter, foreign_promise>),
                  "upshift: a task cannot await this: it is not an awaitable of Upshift, and only Upshift may resume the coroutine. Give its callback the waker of "
                  "`co_await upshift::suspend(...)`, or wait for it in `upshift::blocking(...)`");
    if constexpr (std::is_reference_v<given>) {
      return by_reference<awaiter>{awaiter_of(std::forward<Awaited>(awaited))};
    } else {
      return awaiter_of(std::forward<Awaited>(awaited));
    }
  }

  std::suspend_always initial_suspend() const noexcept { return {}; }

  struct final_awaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> here) const noexcept {
      promise_base& ended = here.promise();
      ended.owner = nullptr;
      if (ended.parent != nullptr) {
        ended.root->innermost = ended.parent;
      } else {
        ended.root->done = true;
      }
    }
    void await_resume() const noexcept {}
  };
  final_awaiter final_suspend() const noexcept { return {}; }
};

inline int root_base::poll(void* data, upshift_cx* cx) noexcept {
  auto* root = static_cast<root_base*>(data);
  if (root->pending != nullptr) {
    if (root->pending->ready(root->pending, cx) == 0) return 0;
    root->pending = nullptr;
  }
  root->cx = cx;
  do {
    root->innermost->self.resume();
  } while (root->pending == nullptr && !root->done);
  if (!root->done) return 0;
  root->finish(root);
  return 1;
}

/// Destroys the frames of an unfinished tree, in a loop from the innermost on: however deep the
/// tree is, nothing nests on the stack.
inline void unwind(promise_base* innermost) noexcept {
  while (innermost != nullptr) {
    promise_base* parent = innermost->parent;
    if (innermost->owner != nullptr) *innermost->owner = nullptr;
    const auto frame = innermost->self;
    frame.destroy();
    innermost = parent;
  }
}

/// The promise of a task whose frame could not be allocated.
inline constinit promise_base no_frame{};

template <class P>
concept upshift_promise = std::derived_from<P, promise_base>;

/// A result or an exception.
template <class T>
struct outcome {
  std::optional<T> value;
#if UPSHIFT_EXCEPTIONS
  std::exception_ptr thrown;
#endif
  template <class U = T>
    requires std::convertible_to<U, T>
  void return_value(U&& from) {
    value.emplace(std::forward<U>(from));
  }
  T take() {
#if UPSHIFT_EXCEPTIONS
    if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
#endif
    return std::move(*value);
  }
};

template <>
struct outcome<void> {
#if UPSHIFT_EXCEPTIONS
  std::exception_ptr thrown;
#endif
  void return_void() const noexcept {}
  void take() {
#if UPSHIFT_EXCEPTIONS
    if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
#endif
  }
};

#if UPSHIFT_EXCEPTIONS
/// Ends the program with the message of its terminate handler, which names the exception.
inline void terminate_with(std::exception_ptr thrown) noexcept {
  std::fputs("upshift: a coroutine ended with an exception, and no join handle is left to receive it\n", stderr);
  std::rethrow_exception(std::move(thrown));
}

inline constinit std::atomic<void (*)(std::exception_ptr) noexcept> unhandled{terminate_with};
#endif

/// Frames come from the allocator that follows std::allocator_arg in the coroutine's parameters, or
/// from the thread's cache. The deallocation function and the allocator are stored behind the
/// frame.
struct frame_memory {
  using freer = void (*)(void* frame, std::size_t size) noexcept;

  static constexpr std::size_t tail(std::size_t size) noexcept {
    return (size + alignof(freer) - 1) & ~(alignof(freer) - 1);
  }

  static void* operator new(std::size_t size) noexcept {
    void* frame = take_frame(tail(size) + sizeof(freer));
    if (frame != nullptr) set(frame, size, nullptr);
    return frame;
  }

  template <class Allocator, class... Arguments>
  static void* operator new(std::size_t size, std::allocator_arg_t, const Allocator& from, const Arguments&...) noexcept {
    return allocate(size, from);
  }

  /// Allocates the frame of a member function, or of a lambda.
  template <class This, class Allocator, class... Arguments>
  static void* operator new(std::size_t size, const This&, std::allocator_arg_t, const Allocator& from, const Arguments&...) noexcept {
    return allocate(size, from);
  }

  static void operator delete(void* frame, std::size_t size) noexcept {
    freer free;
    std::memcpy(&free, static_cast<char*>(frame) + tail(size), sizeof free);
    if (free != nullptr) {
      free(frame, size);
    } else {
      return_frame(frame, tail(size) + sizeof(freer));
    }
  }

 private:
  static void set(void* frame, std::size_t size, freer free) noexcept {
    std::memcpy(static_cast<char*>(frame) + tail(size), &free, sizeof free);
  }

  template <class Allocator>
  struct allocated_frame {
    struct alignas(__STDCPP_DEFAULT_NEW_ALIGNMENT__) unit {
      std::byte bytes[__STDCPP_DEFAULT_NEW_ALIGNMENT__];
    };
    using allocator = typename std::allocator_traits<Allocator>::template rebind_alloc<unit>;
    using traits = std::allocator_traits<allocator>;

    static constexpr std::size_t allocator_at(std::size_t size) noexcept {
      const std::size_t end = tail(size) + sizeof(freer);
      return (end + alignof(allocator) - 1) & ~(alignof(allocator) - 1);
    }
    static constexpr std::size_t units(std::size_t size) noexcept {
      return (allocator_at(size) + sizeof(allocator) + sizeof(unit) - 1) / sizeof(unit);
    }
    static void free(void* frame, std::size_t size) noexcept {
      auto* stored_allocator = std::launder(reinterpret_cast<allocator*>(static_cast<char*>(frame) + allocator_at(size)));
      allocator from(std::move(*stored_allocator));
      stored_allocator->~allocator();
      traits::deallocate(from, static_cast<unit*>(frame), units(size));
    }
  };

  template <class Allocator>
  static void* allocate(std::size_t size, const Allocator& given) noexcept {
    using kind = allocated_frame<Allocator>;
    typename kind::allocator from(given);
    void* frame;
#if UPSHIFT_EXCEPTIONS
    try {
      frame = kind::traits::allocate(from, kind::units(size));
    } catch (...) {
      return nullptr;
    }
#else
    frame = kind::traits::allocate(from, kind::units(size));
    if (frame == nullptr) return nullptr;
#endif
    set(frame, size, kind::free);
    ::new (static_cast<char*>(frame) + kind::allocator_at(size)) typename kind::allocator(std::move(from));
    return frame;
  }
};

template <class T>
struct task_promise final : promise_base, outcome<T>, frame_memory {
  task<T> get_return_object() noexcept;
  static task<T> get_return_object_on_allocation_failure() noexcept;
  void unhandled_exception() noexcept {
#if UPSHIFT_EXCEPTIONS
    this->thrown = std::current_exception();
#else
    std::terminate();
#endif
  }
};

[[noreturn]] inline void no_memory() {
#if UPSHIFT_EXCEPTIONS
  throw std::bad_alloc();
#else
  raise(-ENOMEM);
#endif
}

/// The outcome of a task that cannot begin: an exception, or, without exceptions, the error of a
/// task whose value is a result.
template <class T>
outcome<T> refused(int code) {
  outcome<T> failed;
#if UPSHIFT_EXCEPTIONS
  try {
    if (code == -ENOMEM) no_memory();
    raise(code, "upshift::task");
  } catch (...) {
    failed.thrown = std::current_exception();
  }
#else
  if constexpr (is_result<T>) {
    failed.value.emplace(T::failure(code));
  } else {
    raise(code);
  }
#endif
  return failed;
}

template <class T>
struct tree;

}  // namespace detail

#if UPSHIFT_EXCEPTIONS
/// A handler of exceptions that no join can receive any more, because the handle of the coroutine,
/// or of the function of `blocking`, was detached or destroyed. Called on any thread.
using unhandled_exception_handler = void (*)(std::exception_ptr) noexcept;

/// Sets the handler of the whole program and returns the previous handler. Null stands for the
/// default, std::terminate.
///
///     upshift::set_unhandled_exception([](std::exception_ptr) noexcept { lost.fetch_add(1); });
inline unhandled_exception_handler set_unhandled_exception(unhandled_exception_handler handler) noexcept {
  return detail::unhandled.exchange(handler != nullptr ? handler : detail::terminate_with);
}
#endif

/// A coroutine that has not begun. It begins when it is awaited, spawned or passed to
/// runtime::block_on, which empties the task. A task that is destroyed earlier never begins. A
/// moved-from task is empty too. Awaiting or spawning an empty task fails with EINVAL. A task whose
/// frame could not be allocated is empty as well; its error is ENOMEM, thrown as std::bad_alloc.
template <class T = void>
class [[nodiscard("a task does nothing unless it is awaited or spawned")]] task {
 public:
  static_assert(!std::is_reference_v<T>, "a task has no reference for a result: return a pointer, or std::ref");
  using promise_type = detail::task_promise<T>;
  using value_type = T;

  task() noexcept = default;
  task(task&& other) noexcept : promise_(std::exchange(other.promise_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    // The old frame ends last, because its destructors may access this task.
    task temporary(std::move(other));
    std::swap(promise_, temporary.promise_);
    return *this;
  }
  ~task() {
    if (auto* frame = release()) frame->self.destroy();
  }

  /// Returns false if the task is empty.
  explicit operator bool() const noexcept { return code() == 0; }

  /// Owns the frame for the duration of the awaiting expression.
  class awaiter {
   public:
    explicit awaiter(task& child) noexcept : code_(child.code()), child_(child.release()) {}
    awaiter(const awaiter&) = delete;
    awaiter& operator=(const awaiter&) = delete;
    ~awaiter() {
      if (child_ != nullptr) child_->self.destroy();
    }
    bool await_ready() const noexcept { return child_ == nullptr || child_->root != nullptr; }
    template <detail::upshift_promise Parent>
    void await_suspend(std::coroutine_handle<Parent> here) noexcept {
      child_->parent = &here.promise();
      child_->owner = &child_;
      child_->root = here.promise().root;
      child_->root->innermost = child_;
    }
    T await_resume() {
      // The task has ended, and its result has not been taken.
      if (child_ != nullptr && child_->owner == nullptr && code_ == 0) [[likely]] {
        code_ = -EINVAL;
        return static_cast<promise_type*>(child_)->take();
      }
      return detail::refused<T>(code_ == 0 ? -EINVAL : code_).take();
    }

   private:
    int code_;
    detail::promise_base* child_;
  };
  awaiter operator co_await() && noexcept { return awaiter(*this); }

 private:
  friend promise_type;
  friend detail::tree<T>;
  template <class U>
  friend upshift_task detail::as_root(task<U> work, int& code) noexcept;
  template <class Awaitable>
  friend struct detail::branch;

  explicit task(detail::promise_base& promise) noexcept : promise_(&promise) {}

  /// Returns a negative errno if the task cannot begin; 0 if it can.
  int code() const noexcept {
    if (promise_ == nullptr) return -EINVAL;
    return promise_ == &detail::no_frame ? -ENOMEM : 0;
  }

  /// Releases the frame; null if the task is empty.
  detail::promise_base* release() noexcept {
    auto* frame = std::exchange(promise_, nullptr);
    return frame == &detail::no_frame ? nullptr : frame;
  }

  detail::promise_base* promise_ = nullptr;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept {
  this->self = std::coroutine_handle<task_promise>::from_promise(*this);
  return task<T>(*this);
}

template <class T>
task<T> task_promise<T>::get_return_object_on_allocation_failure() noexcept {
  return task<T>(no_frame);
}

/// The value for the join handle.
template <class T>
struct rooted : root_base, outcome<T> {
#if UPSHIFT_EXCEPTIONS
  rooted() = default;
  ~rooted() {
    if (this->thrown) unhandled.load()(std::move(this->thrown));
  }
#endif
  static T take(void* data) { return static_cast<rooted*>(static_cast<root_base*>(data))->outcome<T>::take(); }
};

/// A tree of tasks. If the first task is empty, the tree is never polled.
template <class T>
struct tree final : rooted<T> {
  explicit tree(task<T> work) noexcept : first(static_cast<task_promise<T>*>(work.release())) {
    if (first != nullptr) first->root = this;
    this->innermost = first;
    this->finish = [](root_base* root) noexcept {
      auto* self = static_cast<tree*>(root);
      static_cast<outcome<T>&>(*self) = std::move(static_cast<outcome<T>&>(*self->first));
      self->stop();
    };
    this->destroy = [](root_base* root) noexcept { delete static_cast<tree*>(root); };
  }
  tree(const tree&) = delete;
  ~tree() { stop(); }

  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take_frame(size); }
  static void operator delete(void* tree, std::size_t size) noexcept { return_frame(tree, size); }

  void stop() noexcept { unwind(std::exchange(this->innermost, nullptr)); }

  task_promise<T>* first;
};

/// Converts a task for the ABI, which then owns it. If the task cannot begin, `data` is null and
/// `code` has the reason.
template <class T>
upshift_task as_root(task<T> work, int& code) noexcept {
  root_base* root = nullptr;
  code = work.code();
  if (code == 0) {
    root = new (std::nothrow) tree<T>(std::move(work));
    if (root == nullptr) code = -ENOMEM;
  }
  return upshift_task{root, [](void* d, upshift_cx* c) { return root_base::poll(d, c); }, [](void* d) { root_base::drop(d); }};
}

/// Awaits an operation of the ABI. `Start(op, cx)` starts it and returns 1 if it is ready;
/// `Finish(op)` returns the result. The object lives in the frame of the awaiting coroutine and
/// does not move; its destructor cancels the operation. A second await, even during the first,
/// fails with EINVAL.
template <class Start, class Finish>
class [[nodiscard("co_await it")]] operation : public waiting {
 public:
  operation(Start start, Finish finish) : waiting{poll_again}, start_(std::move(start)), finish_(std::move(finish)) { op_.vtable = nullptr; }
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;
  ~operation() {
    if (op_.vtable != nullptr) upshift_op_drop(&op_);
  }

  bool await_ready() const noexcept { return state_ != initial; }
  template <upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    if (begin(here.promise().root->cx)) return false;
    promise_base::wait_for(here, this);
    return true;
  }
  decltype(auto) await_resume() {
    if (state_ != begun || op_.vtable != nullptr) [[unlikely]] {
      upshift_op none;
      none.vtable = nullptr;
      none.result = state_ == stopped ? -ECANCELED : -EINVAL;
      none.out = upshift_out{};
      return finish_(none);
    }
    state_ = taken;
    return finish_(op_);
  }

  /// Begins the operation, as part of a wait for several awaitables.
  bool begin(upshift_cx* cx) noexcept {
    if (std::exchange(state_, state_ == initial ? begun : state_) != initial) return true;
    return start_(&op_, cx) != 0;
  }
  bool poll(upshift_cx* cx) noexcept { return upshift_op_poll(&op_, cx) != 0; }
  void stop() noexcept {
    if (state_ == initial || op_.vtable != nullptr) state_ = stopped;
    upshift_op_drop(&op_);
  }

 private:
  static int poll_again(waiting* wait, upshift_cx* cx) noexcept { return upshift_op_poll(&static_cast<operation*>(wait)->op_, cx); }

  upshift_op op_;
  enum : std::uint8_t { initial, begun, taken, stopped } state_ = initial;
  [[no_unique_address]] Start start_;
  [[no_unique_address]] Finish finish_;
};

}  // namespace detail

UPSHIFT_END
