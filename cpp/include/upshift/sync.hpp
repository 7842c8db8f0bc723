// A mutex with priority lending, and bounded channels.
#pragma once

#include <bit>

#include "net.hpp"

UPSHIFT_BEGIN

class mutex;

/// Exclusive access to the data that a mutex protects; unlocks the mutex when destroyed.
class [[nodiscard("the mutex is given back when the guard is destroyed")]] mutex_guard {
 public:
  explicit mutex_guard(const upshift_mutex* held) noexcept : held_(held) {}
  mutex_guard(mutex_guard&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  mutex_guard& operator=(mutex_guard&&) = delete;
  ~mutex_guard() { unlock(); }
  void unlock() noexcept {
    if (held_ != nullptr) upshift_mutex_unlock(std::exchange(held_, nullptr));
  }

 private:
  const upshift_mutex* held_;
};

/// A mutex of coroutines. The most urgent waiter is first, and waiters lend their level to the
/// holder. The mutex must outlive its guards and waits.
class mutex {
 public:
  mutex() : raw_(upshift_mutex_new()) {}

  [[nodiscard("co_await it")]] auto lock() noexcept {
    return detail::operation([m = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_mutex_lock(op, cx, m); },
                             [m = raw_.get()](upshift_op& op) { return detail::value_or_error<throwing_t>(op.result, [&] { return mutex_guard(m); }); });
  }

  std::optional<mutex_guard> try_lock() noexcept {
    if (upshift_mutex_try_lock(raw_.get()) != 1) return std::nullopt;
    return std::optional<mutex_guard>(std::in_place, raw_.get());
  }

 private:
  detail::owned<upshift_mutex, upshift_mutex_free> raw_;
};

namespace detail {

/// The pointer form of a message: the message itself if it is small and trivial or owns a pointer,
/// else its address on the heap.
template <class T>
struct as_pointer {
  static void* from(T value) { return new T(std::move(value)); }
  static T to(void* data) {
    std::unique_ptr<T> held(static_cast<T*>(data));
    return std::move(*held);
  }
  static void drop(void* data) { delete static_cast<T*>(data); }
  static constexpr auto dropper() noexcept -> void (*)(void*) { return drop; }
};

template <class T>
  requires(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> && sizeof(T) <= sizeof(void*))
struct as_pointer<T> {
  static void* from(T value) noexcept {
    void* data = nullptr;
    std::memcpy(&data, &value, sizeof value);
    return data;
  }
  static T to(void* data) noexcept {
    T value;
    std::memcpy(&value, &data, sizeof value);
    return value;
  }
  static constexpr auto dropper() noexcept -> void (*)(void*) { return nullptr; }
};

template <class U>
struct as_pointer<std::unique_ptr<U>> {
  static void* from(std::unique_ptr<U> value) noexcept { return value.release(); }
  static std::unique_ptr<U> to(void* data) noexcept { return std::unique_ptr<U>(static_cast<U*>(data)); }
  static void drop(void* data) { delete static_cast<U*>(data); }
  static constexpr auto dropper() noexcept -> void (*)(void*) { return drop; }
};

}  // namespace detail

/// The sending side of a channel. Copies are further senders, and may be used on any thread.
template <class T>
class sender {
  using form = detail::as_pointer<T>;

 public:
  explicit sender(upshift_sender* raw) noexcept : raw_(raw) {}
  sender(sender&&) noexcept = default;
  sender& operator=(sender&&) noexcept = default;
  sender(const sender& other) : raw_(upshift_sender_clone(other.raw_.get())) {}
  sender& operator=(const sender& other) { return *this = sender(other); }

  /// Waits for room and sends. Fails with EPIPE, and drops the message, if the receiver is gone.
  template <error_mode M = throwing_t>
  auto send(T value, M = {}) {
    return detail::operation(
        [s = raw_.get(), value = std::move(value)](upshift_op* op, upshift_cx* cx) mutable {
          return upshift_send(op, cx, s, form::from(std::move(value)));
        },
        [](upshift_op& op) {
          if (op.result < 0 && form::dropper() != nullptr) form::dropper()(op.out.handles[0]);
          return detail::value_or_error<M>(op.result, [] {});
        });
  }

  /// Sends without waiting. Returns false if there is no room, or no receiver.
  bool try_send(T value) {
    void* data = form::from(std::move(value));
    if (upshift_try_send(raw_.get(), data) == 0) return true;
    if (form::dropper() != nullptr) form::dropper()(data);
    return false;
  }

  void close() noexcept { raw_.reset(); }

 private:
  detail::owned<upshift_sender, upshift_sender_free> raw_;
};

/// The receiving side of a channel.
template <class T>
class receiver {
  using form = detail::as_pointer<T>;

 public:
  explicit receiver(upshift_receiver* raw) noexcept : raw_(raw) {}

  /// Waits for a message; returns an empty optional if the channel has ended. Cancellation loses no
  /// message.
  [[nodiscard("co_await it")]] auto recv() noexcept {
    return detail::operation([r = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_receive(op, cx, r); },
                             [](upshift_op& op) {
                               if (op.result < 0) detail::raise(op.result);
                               return op.result == 1 ? std::optional<T>(form::to(op.out.handles[0])) : std::optional<T>();
                             });
  }

  std::optional<T> try_recv() noexcept {
    void* data = nullptr;
    return upshift_try_receive(raw_.get(), &data) == 1 ? std::optional<T>(form::to(data)) : std::optional<T>();
  }

 private:
  detail::owned<upshift_receiver, upshift_receiver_free> raw_;
};

/// Creates a channel with room for `capacity` messages, at least one.
template <class T>
std::pair<sender<T>, receiver<T>> channel(std::size_t capacity) {
  upshift_sender* s = nullptr;
  upshift_receiver* r = nullptr;
  const int code = upshift_channel(capacity, detail::as_pointer<T>::dropper(), &s, &r);
  if (code < 0) detail::raise(code);
  return {sender<T>(s), receiver<T>(r)};
}

UPSHIFT_END
