// Buffers. The kernel owns the memory of an operation until its terminal completion, even if the
// waiting coroutine is gone. So an operation owns its buffer, and returns it with the result.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"

UPSHIFT_BEGIN

/// Bytes that an operation can own: from malloc, of a container, or constant. A buffer can be moved
/// but not copied.
class buffer {
 public:
  buffer() noexcept = default;

  /// Creates an empty buffer with room for `capacity` bytes.
  explicit buffer(std::size_t capacity) {
    if (upshift_buf_alloc(capacity, &raw_) < 0) {
#if UPSHIFT_EXCEPTIONS
      throw std::bad_alloc();
#else
      detail::raise(-ENOMEM);
#endif
    }
  }

  /// Creates a buffer with a copy of bytes.
  explicit buffer(std::string_view bytes) : buffer(bytes.size()) {
    if (!bytes.empty()) std::memcpy(raw_.data, bytes.data(), bytes.size());
    raw_.len = bytes.size();
  }

  explicit buffer(const char* text) : buffer(text != nullptr ? std::string_view(text) : std::string_view()) {}

  /// Adopts a container, for writing: its bytes are not copied.
  explicit buffer(std::string&& bytes) { keep(std::move(bytes)); }
  template <class Byte, class Allocator>
    requires(sizeof(Byte) == 1)
  explicit buffer(std::vector<Byte, Allocator>&& bytes) {
    keep(std::move(bytes));
  }

  /// Creates a buffer of bytes that live forever, such as a literal.
  static buffer constant(std::string_view bytes) noexcept {
    buffer buf;
    buf.raw_.data = reinterpret_cast<std::uint8_t*>(const_cast<char*>(bytes.data()));
    buf.raw_.len = buf.raw_.capacity = bytes.size();
    return buf;
  }

  /// Adopts memory with its own release function, called after the kernel's terminal completion.
  static buffer with_release(void* data, std::size_t len, std::size_t capacity,
                             void (*release)(void* context, std::uint8_t* data, std::size_t capacity), void* context) noexcept {
    return buffer(upshift_buf{static_cast<std::uint8_t*>(data), len, capacity, release, context});
  }

  /// Adopts a buffer of the ABI.
  explicit buffer(const upshift_buf& raw) noexcept : raw_(raw) {}

  buffer(buffer&& other) noexcept : raw_(std::exchange(other.raw_, upshift_buf{})) {}
  buffer& operator=(buffer&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, upshift_buf{});
    }
    return *this;
  }
  ~buffer() { reset(); }

  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(raw_.data); }
  const std::byte* data() const noexcept { return reinterpret_cast<const std::byte*>(raw_.data); }
  std::size_t size() const noexcept { return raw_.len; }
  std::size_t capacity() const noexcept { return raw_.capacity; }
  bool empty() const noexcept { return raw_.len == 0; }

  /// Sets the number of bytes that the next operation writes; at most the capacity.
  void resize(std::size_t len) noexcept { raw_.len = len < raw_.capacity ? len : raw_.capacity; }
  void clear() noexcept { raw_.len = 0; }

  /// Appends bytes. Returns false, and copies nothing, if there is no room.
  [[nodiscard]] bool append(std::string_view bytes) noexcept {
    if (raw_.capacity - raw_.len < bytes.size()) return false;
    if (!bytes.empty()) std::memcpy(raw_.data + raw_.len, bytes.data(), bytes.size());
    raw_.len += bytes.size();
    return true;
  }

  std::string_view view() const noexcept { return {reinterpret_cast<const char*>(raw_.data), raw_.len}; }
  std::span<std::byte> room() noexcept { return {data(), raw_.capacity}; }

  /// Transfers the buffer to the ABI.
  upshift_buf release() noexcept { return std::exchange(raw_, upshift_buf{}); }
  upshift_buf* raw() noexcept { return &raw_; }

 private:
  template <class Container>
  void keep(Container bytes) {
    auto* owned = new Container(std::move(bytes));
    raw_.data = reinterpret_cast<std::uint8_t*>(owned->data());
    raw_.len = raw_.capacity = owned->size();
    raw_.context = owned;
    raw_.release = [](void* context, std::uint8_t*, std::size_t) { delete static_cast<Container*>(context); };
  }

  void reset() noexcept {
    if (raw_.release != nullptr) raw_.release(raw_.context, raw_.data, raw_.capacity);
    raw_ = upshift_buf{};
  }

  upshift_buf raw_{};
};

/// Received bytes in a buffer of the runtime, which the destructor returns. Do not keep many: the
/// runtime has a limited number of buffers.
class bytes {
 public:
  bytes() noexcept = default;
  explicit bytes(const upshift_bytes& raw) noexcept : raw_(raw), held_(true) {}
  bytes(bytes&& other) noexcept : raw_(other.raw_), held_(std::exchange(other.held_, false)) {}
  bytes& operator=(bytes&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = other.raw_;
      held_ = std::exchange(other.held_, false);
    }
    return *this;
  }
  ~bytes() { reset(); }

  const std::byte* data() const noexcept { return held_ ? reinterpret_cast<const std::byte*>(raw_.data) : nullptr; }
  std::size_t size() const noexcept { return held_ ? raw_.len : 0; }
  /// Returns true if the peer has ended its direction.
  bool empty() const noexcept { return size() == 0; }
  std::string_view view() const noexcept { return {reinterpret_cast<const char*>(data()), size()}; }

  /// Returns the buffer to the runtime now.
  void reset() noexcept {
    if (std::exchange(held_, false)) upshift_bytes_free(&raw_);
  }

  /// Transfers the bytes to the ABI.
  upshift_bytes release() noexcept { return std::exchange(held_, false) ? raw_ : upshift_bytes{}; }

 private:
  upshift_bytes raw_{};
  bool held_ = false;
};

UPSHIFT_END
