// Files by position, and the papers' system calls in two forms.
#pragma once

#include <fcntl.h>

#include "net.hpp"
#include "spawn.hpp"

UPSHIFT_BEGIN

/// An open file. Its operations may overlap.
class file {
 public:
  file() noexcept = default;
  explicit file(upshift_file* raw) noexcept : raw_(raw) {}

  /// As open(2).
  template <error_mode M = throwing_t>
  static auto open(std::string path, int flags = O_RDONLY, M = {}, unsigned mode = 0666) {
    return opening<M>(nullptr, std::move(path), flags, mode);
  }

  /// Opens beneath this directory: nothing in the path leads out of it.
  template <error_mode M = throwing_t>
  auto open_beneath(std::string path, int flags = O_RDONLY, M = {}, unsigned mode = 0666) const {
    return opening<M>(raw_.get(), std::move(path), flags, mode);
  }

  /// Reads at a position, up to the buffer's capacity. 0: the end.
  template <error_mode M = throwing_t>
  auto read_at(buffer to, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), to = std::move(to), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = to.release();
          return upshift_read_at(op, cx, f, &raw, offset);
        },
        detail::give_transfer<M>());
  }

  /// Writes at a position; may write less than all.
  template <error_mode M = throwing_t>
  auto write_at(buffer from, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), from = std::move(from), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = from.release();
          return upshift_write_at(op, cx, f, &raw, offset);
        },
        detail::give_transfer<M>());
  }

  /// Writes all of a buffer at a position; it comes back.
  template <error_mode M = throwing_t>
  auto write_all_at(buffer from, std::uint64_t offset, M = {}) const noexcept {
    return detail::operation(
        [f = raw_.get(), from = std::move(from), offset](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = from.release();
          return upshift_write_all_at(op, cx, f, &raw, offset);
        },
        detail::give_written<M>());
  }

  /// Waits until what was written is on the device.
  template <error_mode M = throwing_t>
  auto sync(M = {}, bool data_only = false) const noexcept {
    return detail::operation([f = raw_.get(), data_only](upshift_op* op, upshift_cx* cx) { return upshift_file_sync(op, cx, f, data_only); },
                             detail::give_nothing<M>());
  }

  /// Its length in bytes; EISDIR for a directory.
  template <error_mode M = throwing_t>
  auto size(M = {}) const noexcept {
    return detail::operation([f = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_file_len(op, cx, f); }, detail::give_count<M>());
  }

  template <error_mode M = throwing_t>
  auto set_size(std::uint64_t size, M = {}) const noexcept {
    return detail::operation([f = raw_.get(), size](upshift_op* op, upshift_cx* cx) { return upshift_file_set_len(op, cx, f, size); },
                             detail::give_nothing<M>());
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
          return detail::checked<M>(op.result, [&] { return file(static_cast<upshift_file*>(op.out.handles[0])); });
        });
  }

  detail::owned<upshift_file, upshift_file_free> raw_;
};

/// read(2), the form without a coroutine's id: blocks the thread.
inline tried_transfer read(int fd, buffer to) {
  const std::int64_t count = upshift_read(fd, to.raw());
  return {detail::checked<as_result_t>(count, [&] { return static_cast<std::size_t>(count); }), std::move(to)};
}

/// write(2), the form without a coroutine's id: blocks the thread.
inline tried_transfer write(int fd, buffer from) {
  const std::int64_t count = upshift_write(fd, from.raw());
  return {detail::checked<as_result_t>(count, [&] { return static_cast<std::size_t>(count); }), std::move(from)};
}

/// A call of the second form under way: it was started when it was made, wakes its coroutine when it is done, and may be awaited.
class [[nodiscard("destroying the call cancels it")]] async_call : public detail::waiting {
 public:
  using starter = int (*)(upshift_op*, int, const upshift_buf*, std::uint64_t);

  async_call(starter start, int fd, buffer buf, cid wakes) noexcept : waiting{again} {
    op_.vtable = nullptr;
    const int code = start(&op_, fd, buf.raw(), static_cast<std::uint64_t>(wakes));
    if (code < 0) {
      op_.result = code;
      op_.out.buf = buf.release();
    } else {
      (void)buf.release();
    }
  }
  async_call(const async_call&) = delete;
  async_call& operator=(const async_call&) = delete;
  ~async_call() {
    if (op_.vtable != nullptr) {
      upshift_op_drop(&op_);
    } else if (!taken_) {
      buffer(op_.out.buf);
    }
  }

  bool await_ready() const noexcept { return op_.vtable == nullptr; }
  template <detail::upshift_promise Promise>
  bool await_suspend(std::coroutine_handle<Promise> here) noexcept {
    if (again(this, here.promise().root->cx) != 0) return false;
    detail::promise_base::wait_for(here, this);
    return true;
  }
  /// For what waits for several.
  bool begin(upshift_cx* cx) noexcept { return op_.vtable == nullptr || again(this, cx) != 0; }
  bool poll(upshift_cx* cx) noexcept { return again(this, cx) != 0; }
  void stop() noexcept { upshift_op_drop(&op_); }

  /// Once.
  tried_transfer await_resume() noexcept {
    taken_ = true;
    return {detail::checked<as_result_t>(op_.result, [&] { return static_cast<std::size_t>(op_.result); }), buffer(op_.out.buf)};
  }

 private:
  static int again(detail::waiting* what, upshift_cx* cx) noexcept { return upshift_op_poll(&static_cast<async_call*>(what)->op_, cx); }

  upshift_op op_;
  bool taken_ = false;
};

/// read(2), the form with a coroutine's id: starts at once, at the caller's level, and wakes that coroutine when it is done.
inline async_call read(int fd, buffer to, cid wakes) noexcept { return async_call(upshift_read_async, fd, std::move(to), wakes); }

/// write(2), the form with a coroutine's id.
inline async_call write(int fd, buffer from, cid wakes) noexcept { return async_call(upshift_write_async, fd, std::move(from), wakes); }

UPSHIFT_END
