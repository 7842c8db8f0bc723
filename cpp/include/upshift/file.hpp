// Files with positional reads and writes, and system calls in two forms as in the SharedScheduler
// papers.
#pragma once

#include <fcntl.h>

#include <mutex>

#include "net.hpp"
#include "several.hpp"

UPSHIFT_BEGIN

/// An open file. Its operations may overlap.
class file {
 public:
  file() noexcept = default;
  explicit file(upshift_file* raw) noexcept : raw_(raw) {}

  /// Opens a file like open(2).
  template <error_mode M = throwing_t>
  static auto open(std::string path, int flags = O_RDONLY, M = {}, unsigned mode = 0666) {
    return opening<M>(nullptr, std::move(path), flags, mode);
  }

  /// Opens a file beneath this directory: the path cannot leave it.
  template <error_mode M = throwing_t>
  auto open_beneath(std::string path, int flags = O_RDONLY, M = {}, unsigned mode = 0666) const {
    return opening<M>(raw_.get(), std::move(path), flags, mode);
  }

  /// Reads at a position, up to the buffer's capacity. A count of 0 is the end of the file.
  template <error_mode M = throwing_t>
  auto read_at(buffer to, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), to = std::move(to), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = to.release();
          return upshift_read_at(op, cx, f, &raw, offset);
        },
        detail::to_transfer<M>());
  }

  /// Writes at a position; may write only a part.
  template <error_mode M = throwing_t>
  auto write_at(buffer from, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), from = std::move(from), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = from.release();
          return upshift_write_at(op, cx, f, &raw, offset);
        },
        detail::to_transfer<M>());
  }

  /// Writes a whole buffer at a position and returns the buffer.
  template <error_mode M = throwing_t>
  auto write_all_at(buffer from, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), from = std::move(from), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = from.release();
          return upshift_write_all_at(op, cx, f, &raw, offset);
        },
        detail::to_write_result<M>());
  }

  /// Waits until written data is on the device.
  template <error_mode M = throwing_t>
  auto sync(M = {}, bool data_only = false) const noexcept {
    return detail::operation([f = raw_.get(), data_only](upshift_op* op, upshift_cx* cx) { return upshift_file_sync(op, cx, f, data_only); },
                             detail::to_void<M>());
  }

  /// Returns the length in bytes; EISDIR for a directory.
  template <error_mode M = throwing_t>
  auto size(M = {}) const noexcept {
    return detail::operation([f = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_file_len(op, cx, f); }, detail::to_count<M>());
  }

  template <error_mode M = throwing_t>
  auto set_size(std::uint64_t size, M = {}) const noexcept {
    return detail::operation([f = raw_.get(), size](upshift_op* op, upshift_cx* cx) { return upshift_file_set_len(op, cx, f, size); },
                             detail::to_void<M>());
  }

  int fd() const noexcept { return upshift_file_fd(raw_.get()); }
  explicit operator bool() const noexcept { return static_cast<bool>(raw_); }

 private:
  template <error_mode M>
  static auto opening(const upshift_file* beneath, std::string path, int flags, unsigned mode) {
    return detail::operation(
        [beneath, path = std::move(path), flags, mode](upshift_op* op, upshift_cx* cx) {
          return upshift_open(op, cx, beneath, detail::c_string(path), flags, mode);
        },
        [](upshift_op& op) {
          return detail::value_or_error<M>(op.result, [&] { return file(static_cast<upshift_file*>(op.out.handles[0])); });
        });
  }

  detail::owned<upshift_file, upshift_file_free> raw_;
};

/// Calls read(2) in the form without a coroutine's id, which blocks the thread.
inline tried_transfer read(int fd, buffer to) {
  const std::int64_t count = upshift_read(fd, to.raw());
  return {detail::value_or_error<as_result_t>(count, [&] { return static_cast<std::size_t>(count); }), std::move(to)};
}

/// Calls write(2) in the form without a coroutine's id, which blocks the thread.
inline tried_transfer write(int fd, buffer from) {
  const std::int64_t count = upshift_write(fd, from.raw());
  return {detail::value_or_error<as_result_t>(count, [&] { return static_cast<std::size_t>(count); }), std::move(from)};
}

/// A running call of the asynchronous form. The call starts at once, and wakes its coroutine when
/// it is done. It is awaited once, or stopped.
///
///     in progress ──▶ done ──▶ taken, by an await
///         └────────────┴────▶ stopped
///
/// An await fails with ECANCELED if the call was or is stopped, with EINVAL if the result was
/// taken, and with EBUSY while another coroutine waits for the call. The object must outlive the
/// awaits.
class [[nodiscard("destroying the call cancels it")]] async_call {
 public:
  using starter = int (*)(upshift_op*, int, const upshift_buf*, std::uint64_t);

  async_call(starter start, int fd, buffer buf, cid wakes) noexcept {
    op_.vtable = nullptr;
    const int code = start(&op_, fd, buf.raw(), static_cast<std::uint64_t>(wakes));
    const upshift_buf returned_buf = buf.release();
    if (code >= 0) return;
    op_.result = code;
    // A call that panicked has released the buffer.
    op_.out.buf = code == -ENOTRECOVERABLE ? upshift_buf{} : returned_buf;
  }
  async_call(const async_call&) = delete;
  async_call& operator=(const async_call&) = delete;
  ~async_call() { stop(); }

  /// Cancels the call, or discards its result. The buffer is released when the kernel no longer
  /// uses it. May be called on any thread.
  void stop() noexcept {
    std::optional<waker> waiting;
    {
      std::lock_guard held(lock_);
      if (end_code_ != 0) return;
      end_code_ = -ECANCELED;
      if (awaiter_ != nullptr) waiting.emplace(std::move(*std::exchange(awaiter_, nullptr)->waker_));
    }
    // No poll follows.
    if (op_.vtable != nullptr) {
      upshift_op_drop(&op_);
    } else {
      buffer(op_.out.buf);
    }
    if (waiting) waiting->wake();
  }

  class awaiter : public detail::waiting {
   public:
    explicit awaiter(async_call& call) noexcept : waiting{poll_again}, call_(call) {}
    awaiter(const awaiter&) = delete;
    awaiter& operator=(const awaiter&) = delete;
    ~awaiter() {
      std::lock_guard held(call_.lock_);
      if (call_.awaiter_ == this) call_.awaiter_ = nullptr;
    }

    bool await_ready() const noexcept { return false; }
    template <detail::upshift_promise Promise>
    bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
      if (begin(here.promise().root->cx)) return false;
      detail::promise_base::wait_for(here, this);
      return true;
    }
    tried_transfer await_resume() noexcept {
      std::lock_guard held(call_.lock_);
      if (is_busy_) return failed(-EBUSY);
      if (call_.end_code_ != 0) return failed(call_.end_code_);
      call_.end_code_ = -EINVAL;
      const upshift_op& op = call_.op_;
      return {detail::value_or_error<as_result_t>(op.result, [&] { return static_cast<std::size_t>(op.result); }), buffer(op.out.buf)};
    }

    /// Begins the wait, as part of a wait for several awaitables.
    bool begin(upshift_cx* cx) noexcept {
      std::lock_guard held(call_.lock_);
      is_busy_ = call_.awaiter_ != nullptr;
      if (is_busy_ || is_ready(cx)) return true;
      call_.awaiter_ = this;
      waker_.emplace(cx);
      return false;
    }
    bool poll(upshift_cx* cx) noexcept {
      std::lock_guard held(call_.lock_);
      return is_ready(cx);
    }
    void stop() noexcept { call_.stop(); }

   private:
    friend async_call;

    static int poll_again(detail::waiting* wait, upshift_cx* cx) noexcept { return static_cast<awaiter*>(wait)->poll(cx); }
    static tried_transfer failed(int code) { return {result<std::size_t>::failure(code), buffer()}; }
    bool is_ready(upshift_cx* cx) noexcept { return call_.end_code_ != 0 || call_.op_.vtable == nullptr || upshift_op_poll(&call_.op_, cx) != 0; }

    async_call& call_;
    bool is_busy_ = false;
    std::optional<waker> waker_;
  };
  awaiter operator co_await() noexcept { return awaiter(*this); }

 private:
  /// Guards the members below, because one thread may stop the call while another polls it.
  std::mutex lock_;
  upshift_op op_;
  /// Negative errno if the result cannot be taken; 0 if it can be taken, now or later.
  int end_code_ = 0;
  /// The await that waits for the call; null if there is none.
  awaiter* awaiter_ = nullptr;
};

namespace detail {

/// A call as a branch. The call is stopped when the branch is abandoned.
template <>
struct branch<async_call> : branch_base<branch<async_call>, tried_transfer> {
  explicit branch(async_call&& from) noexcept : call(from), inner(std::move(call)) {}
  bool begin(upshift_cx* cx) noexcept { return inner.begin(cx); }
  bool poll(upshift_cx* cx) noexcept { return inner.poll(cx); }
  void stop() noexcept {
    if (this->has_begun && !this->is_ready) call.stop();
  }
  void capture() noexcept { inner.capture(), this->captured = std::move(inner.captured); }
  async_call::awaiter call;
  branch<async_call::awaiter> inner;
};

}  // namespace detail

/// Starts read(2) at once, at the caller's level, and wakes a coroutine when it is done.
inline async_call read(int fd, buffer to, cid wakes) noexcept { return async_call(upshift_read_async, fd, std::move(to), wakes); }

/// Starts write(2) at once, at the caller's level, and wakes a coroutine when it is done.
inline async_call write(int fd, buffer from, cid wakes) noexcept { return async_call(upshift_write_async, fd, std::move(from), wakes); }

UPSHIFT_END
