// A cache of frames. Each thread caches the memory of coroutine frames that ended on it, because a
// server creates and ends frames all the time.
//
// The cache of a thread is bounded: 8 KiB for each of 16 sizes, no frames above 1 KiB. It is freed
// when the thread ends. Nothing is cached under AddressSanitizer, which would not see the use of an
// ended frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define UPSHIFT_KEEPS_FRAMES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UPSHIFT_KEEPS_FRAMES 0
#endif
#endif
#ifndef UPSHIFT_KEEPS_FRAMES
#define UPSHIFT_KEEPS_FRAMES 1
#endif

UPSHIFT_BEGIN

namespace detail {

/// The cache of one thread.
struct frame_cache {
  struct frame {
    frame* next;
  };
  /// Difference between two sizes of cached frames, in bytes.
  static constexpr std::size_t step = 64;
  /// Number of sizes of cached frames.
  static constexpr std::size_t sizes = 16;
  /// Maximum number of cached steps per size: 8 KiB.
  static constexpr std::size_t steps_of_a_size = 128;

  frame* first[sizes];
  std::size_t count[sizes];
  /// State of the cache; a closed cache has been freed, because its thread ends.
  enum : std::uint8_t { unseen, open, closed } state;
};

inline constinit thread_local frame_cache cache{};

struct at_thread_exit {
  ~at_thread_exit() {
    // Frames that end later go back to the heap.
    cache.state = frame_cache::closed;
    for (auto*& first : cache.first) {
      while (first != nullptr) ::operator delete(std::exchange(first, first->next));
    }
  }
  /// Constructs the object of this thread, if that has not happened yet.
  void touch() noexcept {}
};
inline thread_local at_thread_exit at_exit;

/// Returns memory of at least this size, or null. This function and its counterpart are not
/// inlined: a coroutine may continue on another thread, which has another cache.
[[gnu::noinline]] inline void* take_frame(std::size_t size) noexcept {
#if UPSHIFT_KEEPS_FRAMES
  const std::size_t index = (size - 1) / frame_cache::step;
  if (index < frame_cache::sizes) {
    if (auto* frame = cache.first[index]) {
      cache.first[index] = frame->next;
      --cache.count[index];
      return frame;
    }
    size = (index + 1) * frame_cache::step;
  }
#endif
  return ::operator new(size, std::nothrow);
}

/// Frees memory of this size that `take_frame` returned, on any thread.
[[gnu::noinline]] inline void return_frame(void* memory, [[maybe_unused]] std::size_t size) noexcept {
#if UPSHIFT_KEEPS_FRAMES
  const std::size_t index = (size - 1) / frame_cache::step;
  if (index < frame_cache::sizes && (cache.count[index] + 1) * (index + 1) <= frame_cache::steps_of_a_size) {
    if (cache.state != frame_cache::open) {
      if (cache.state == frame_cache::closed) return ::operator delete(memory);
      at_exit.touch();
      cache.state = frame_cache::open;
    }
    cache.first[index] = ::new (memory) frame_cache::frame{cache.first[index]};
    ++cache.count[index];
    return;
  }
#endif
  ::operator delete(memory);
}

}  // namespace detail

UPSHIFT_END
