// TCP and Unix connections, and UDP.
//
// A connection may be split into a reader and a writer for two coroutines. Each direction has one
// operation at a time. An object must outlive its operations.
#pragma once

#include <array>
#include <compare>
#include <span>
#include <string>

#include "address.hpp"
#include "buffer.hpp"
#include "task.hpp"

UPSHIFT_BEGIN

/// The outcome of a read into a buffer: the buffer, and the number of bytes read.
struct transfer {
  std::size_t count;
  buffer buf;
};

/// The same outcome as a result.
struct tried_transfer {
  result<std::size_t> count;
  buffer buf;
};

/// The outcome of a write of a whole buffer, as a result.
struct tried_write {
  result<void> done;
  buffer buf;
};

namespace detail {

/// Finishers convert a ready operation to the value of the co_await.
template <error_mode M>
struct to_void {
  auto operator()(upshift_op& op) const {
    return value_or_error<M>(op.result, [] {});
  }
};
template <error_mode M>
struct to_count {
  auto operator()(upshift_op& op) const {
    return value_or_error<M>(op.result, [&] { return static_cast<std::size_t>(op.result); });
  }
};
template <error_mode M>
struct to_bytes {
  auto operator()(upshift_op& op) const {
    return value_or_error<M>(op.result, [&] { return bytes(op.out.bytes); });
  }
};
template <error_mode M>
struct to_transfer {
  auto operator()(upshift_op& op) const {
    buffer returned(op.out.buf);
    if constexpr (M::throws) {
      if (op.result < 0) raise(op.result);
      return transfer{static_cast<std::size_t>(op.result), std::move(returned)};
    } else {
      return tried_transfer{value_or_error<M>(op.result, [&] { return static_cast<std::size_t>(op.result); }), std::move(returned)};
    }
  }
};
template <error_mode M>
struct to_write_result {
  auto operator()(upshift_op& op) const {
    buffer returned(op.out.buf);
    if constexpr (M::throws) {
      if (op.result < 0) raise(op.result);
      return returned;
    } else {
      return tried_write{value_or_error<M>(op.result, [] {}), std::move(returned)};
    }
  }
};

/// Owns a handle of the ABI.
template <class T, void (*Free)(T*)>
class owned {
 public:
  owned() noexcept = default;
  explicit owned(T* raw) noexcept : raw_(raw) {}
  owned(owned&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  owned& operator=(owned&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  ~owned() { reset(); }
  T* get() const noexcept { return raw_; }
  T* release() noexcept { return std::exchange(raw_, nullptr); }
  void reset() noexcept {
    if (raw_ != nullptr) Free(std::exchange(raw_, nullptr));
  }
  explicit operator bool() const noexcept { return raw_ != nullptr; }

 private:
  T* raw_ = nullptr;
};

}  // namespace detail

/// The receiving direction of a connection.
class reader {
 public:
  reader() noexcept = default;
  explicit reader(upshift_reader* raw) noexcept : raw_(raw) {}

  /// Waits for data, in a buffer of the runtime: without a copy, and without memory while no data
  /// arrives. Empty bytes mean that the peer has ended its direction.
  template <error_mode M = throwing_t>
  auto recv(M = {}) noexcept {
    return detail::operation([r = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_recv(op, cx, r); }, detail::to_bytes<M>());
  }

  /// Copies received bytes to memory that the kernel never sees, waiting if there are none. A count
  /// of 0 means that the peer has ended its direction.
  template <error_mode M = throwing_t>
  auto read(std::span<std::byte> to, M = {}) noexcept {
    return detail::operation(
        [r = raw_.get(), to](upshift_op* op, upshift_cx* cx) {
          return upshift_recv_copy(op, cx, r, reinterpret_cast<std::uint8_t*>(to.data()), to.size());
        },
        detail::to_count<M>());
  }

  /// Reads until the memory is full; a smaller count means that the peer has ended its direction.
  template <error_mode M = throwing_t>
  auto read_exact(std::span<std::byte> to, M = {}) noexcept {
    return detail::operation(
        [r = raw_.get(), to](upshift_op* op, upshift_cx* cx) {
          return upshift_recv_exact(op, cx, r, reinterpret_cast<std::uint8_t*>(to.data()), to.size());
        },
        detail::to_count<M>());
  }

  /// Reads into a buffer that the operation owns, up to its capacity.
  template <error_mode M = throwing_t>
  auto read(buffer to, M = {}) noexcept {
    return detail::operation(
        [r = raw_.get(), to = std::move(to)](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = to.release();
          return upshift_recv_into(op, cx, r, &raw);
        },
        detail::to_transfer<M>());
  }

  int fd() const noexcept { return upshift_reader_fd(raw_.get()); }
  explicit operator bool() const noexcept { return static_cast<bool>(raw_); }
  void close() noexcept { raw_.reset(); }

 private:
  detail::owned<upshift_reader, upshift_reader_free> raw_;
};

/// The sending direction of a connection. The destructor ends the direction for the peer.
class writer {
 public:
  writer() noexcept = default;
  explicit writer(upshift_writer* raw) noexcept : raw_(raw) {}

  /// Writes a whole buffer through the ring, submitted together with other operations, and returns
  /// the buffer.
  template <error_mode M = throwing_t>
  auto write_all(buffer from, M = {}) noexcept {
    return detail::operation(
        [w = raw_.get(), from = std::move(from)](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_buf raw = from.release();
          return upshift_write_all(op, cx, w, &raw);
        },
        detail::to_write_result<M>());
  }

  /// Writes all of the received bytes, without a copy.
  template <error_mode M = throwing_t>
  auto write_all(bytes from, M = {}) noexcept {
    return detail::operation(
        [w = raw_.get(), from = std::move(from)](upshift_op* op, upshift_cx* cx) mutable {
          const upshift_bytes raw = from.release();
          return upshift_write_bytes(op, cx, w, &raw);
        },
        detail::to_void<M>());
  }

  /// Writes all bytes of the caller's memory, by system calls that do not block.
  template <error_mode M = throwing_t>
  auto write_all(std::string_view from, M = {}) noexcept {
    return detail::operation(
        [w = raw_.get(), from](upshift_op* op, upshift_cx* cx) {
          return upshift_write_copy(op, cx, w, reinterpret_cast<const std::uint8_t*>(from.data()), from.size());
        },
        detail::to_void<M>());
  }

  /// Ends the sending direction for the peer.
  result<void> shutdown() noexcept { return detail::value_or_error<as_result_t>(upshift_writer_shutdown(raw_.get()), [] {}); }
  explicit operator bool() const noexcept { return static_cast<bool>(raw_); }
  void close() noexcept { raw_.reset(); }

 private:
  detail::owned<upshift_writer, upshift_writer_free> raw_;
};

/// A connection, TCP or Unix.
class stream {
 public:
  stream() noexcept = default;
  stream(reader r, writer w) noexcept : reader_(std::move(r)), writer_(std::move(w)) {}

  /// Adopts a connected socket. On failure, too, the caller no longer owns the descriptor.
  template <error_mode M = throwing_t>
  static auto from_fd(int fd, M = {}) {
    upshift_reader* r = nullptr;
    upshift_writer* w = nullptr;
    const int code = upshift_stream_from_fd(fd, &r, &w);
    return detail::value_or_error<M>(code, [&] { return stream(reader(r), writer(w)); });
  }

  template <error_mode M = throwing_t>
  auto recv(M mode = {}) noexcept {
    return reader_.recv(mode);
  }
  template <class To, error_mode M = throwing_t>
  auto read(To to, M mode = {}) noexcept {
    return reader_.read(std::move(to), mode);
  }
  template <error_mode M = throwing_t>
  auto read_exact(std::span<std::byte> to, M mode = {}) noexcept {
    return reader_.read_exact(to, mode);
  }
  template <class From, error_mode M = throwing_t>
  auto write_all(From from, M mode = {}) noexcept {
    return writer_.write_all(std::move(from), mode);
  }
  result<void> shutdown() noexcept { return writer_.shutdown(); }
  result<address> local_address() const { return detail::local_address_of(fd()); }
  result<address> peer_address() const { return detail::peer_address_of(fd()); }
  int fd() const noexcept { return reader_.fd(); }

  std::pair<reader, writer> split() && noexcept { return {std::move(reader_), std::move(writer_)}; }

 private:
  reader reader_;
  writer writer_;
};

namespace detail {

template <error_mode M>
struct to_stream {
  auto operator()(upshift_op& op) const {
    return value_or_error<M>(op.result, [&] {
      return stream(reader(static_cast<upshift_reader*>(op.out.handles[0])), writer(static_cast<upshift_writer*>(op.out.handles[1])));
    });
  }
};

}  // namespace detail

/// A listening socket.
class listener {
 public:
  /// Binds `host:port` and listens, with SO_REUSEADDR.
  template <error_mode M = throwing_t>
  static auto tcp(const std::string& address, M = {}, bool reuseport = false) {
    upshift_listener* raw = nullptr;
    const int code = upshift_listen_tcp(detail::c_string(address), reuseport, &raw);
    return detail::value_or_error<M>(code, [&] { return listener(raw); });
  }

  template <error_mode M = throwing_t>
  static auto unix_path(const std::string& path, M = {}) {
    upshift_listener* raw = nullptr;
    const int code = upshift_listen_unix(detail::c_string(path), &raw);
    return detail::value_or_error<M>(code, [&] { return listener(raw); });
  }

  /// Waits for a connection. Cancellation loses no connection.
  template <error_mode M = throwing_t>
  auto accept(M = {}) noexcept {
    return detail::operation([l = raw_.get()](upshift_op* op, upshift_cx* cx) { return upshift_accept(op, cx, l); }, detail::to_stream<M>());
  }

  /// Returns the local address, with the port that the kernel has chosen for `:0`.
  result<address> local_address() const { return detail::local_address_of(fd()); }
  int fd() const noexcept { return upshift_listener_fd(raw_.get()); }

 private:
  explicit listener(upshift_listener* raw) noexcept : raw_(raw) {}
  detail::owned<upshift_listener, upshift_listener_free> raw_;
};

/// Connects to `host:port`.
template <error_mode M = throwing_t>
auto connect_tcp(std::string address, M = {}) {
  return detail::operation(
      [address = std::move(address)](upshift_op* op, upshift_cx* cx) { return upshift_connect_tcp(op, cx, detail::c_string(address)); },
      detail::to_stream<M>());
}

/// Connects to the socket at a path.
template <error_mode M = throwing_t>
auto connect_unix(std::string path, M = {}) {
  return detail::operation([path = std::move(path)](upshift_op* op, upshift_cx* cx) { return upshift_connect_unix(op, cx, detail::c_string(path)); },
                           detail::to_stream<M>());
}

/// A received datagram: its length and its sender.
struct datagram {
  std::size_t count;
  address from;
};

/// A UDP socket. An operation uses the caller's memory only until it ends, and the kernel never
/// owns that memory.
class udp_socket {
 public:
  template <error_mode M = throwing_t>
  static auto bind(const std::string& address, M = {}) {
    upshift_udp* raw = nullptr;
    const int code = upshift_udp_bind(detail::c_string(address), &raw);
    return detail::value_or_error<M>(code, [&] { return udp_socket(raw); });
  }

  template <error_mode M = throwing_t>
  auto send_to(std::span<const std::byte> data, address to, M = {}) noexcept {
    return detail::operation(
        [s = raw_.get(), data, to](upshift_op* op, upshift_cx* cx) {
          return upshift_udp_send_to(op, cx, s, reinterpret_cast<const std::uint8_t*>(data.data()), data.size(), &to);
        },
        detail::to_count<M>());
  }

  template <error_mode M = throwing_t>
  auto recv_from(std::span<std::byte> room, M = {}) noexcept {
    return detail::operation(
        [s = raw_.get(), room](upshift_op* op, upshift_cx* cx) {
          return upshift_udp_recv_from(op, cx, s, reinterpret_cast<std::uint8_t*>(room.data()), room.size());
        },
        [](upshift_op& op) {
          return detail::value_or_error<M>(op.result, [&] {
            upshift_addr from;
            std::memcpy(&from, &op.out, sizeof from);
            return datagram{static_cast<std::size_t>(op.result), address(from)};
          });
        });
  }

  result<address> local_address() const {
    address bound;
    const int code = upshift_udp_local(raw_.get(), &bound);
    return detail::value_or_error<as_result_t>(code, [&] { return bound; });
  }
  int fd() const noexcept { return upshift_udp_fd(raw_.get()); }

 private:
  explicit udp_socket(upshift_udp* raw) noexcept : raw_(raw) {}
  detail::owned<upshift_udp, upshift_udp_free> raw_;
};

UPSHIFT_END
