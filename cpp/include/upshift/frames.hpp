// Memory of ended frames, kept by the thread on which they ended for the next ones: what serves requests makes and ends frames all the time. A pair of calls
// costs some 35 instructions, of malloc and free 150.
//
// What a thread keeps is bounded: 8 KiB for each of 16 sizes, frames above 1 KiB not at all. It is given back when the thread ends. Nothing is kept under
// AddressSanitizer, which would not see the use of a frame that has ended.
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

/// What one thread keeps.
struct kept_frames {
  struct frame {
    frame* next;
  };
  static constexpr std::size_t step = 64;
  static constexpr std::size_t sizes = 16;
  /// 8 KiB.
  static constexpr std::size_t steps_of_a_size = 128;

  frame* first[sizes];
  std::size_t count[sizes];
  /// Whether the thread gives back what it keeps when it ends.
  enum : std::uint8_t { unseen, open, closed } state;
};

inline constinit thread_local kept_frames kept{};

struct at_thread_exit {
  ~at_thread_exit() {
    // What ends after this goes to the heap.
    kept.state = kept_frames::closed;
    for (auto*& first : kept.first) {
      while (first != nullptr) ::operator delete(std::exchange(first, first->next));
    }
  }
  void touch() noexcept {}
};
inline thread_local at_thread_exit at_exit;

/// Memory of at least this size, or null. Not inlined, nor is its counterpart: a coroutine may go on on another thread, whose frames are others.
[[gnu::noinline]] inline void* take_frame(std::size_t size) noexcept {
#if UPSHIFT_KEEPS_FRAMES
  const std::size_t index = (size - 1) / kept_frames::step;
  if (index < kept_frames::sizes) {
    if (auto* frame = kept.first[index]) {
      kept.first[index] = frame->next;
      --kept.count[index];
      return frame;
    }
    size = (index + 1) * kept_frames::step;
  }
#endif
  return ::operator new(size, std::nothrow);
}

/// Gives back what `take_frame` has returned for this size, on any thread.
[[gnu::noinline]] inline void give_frame(void* memory, [[maybe_unused]] std::size_t size) noexcept {
#if UPSHIFT_KEEPS_FRAMES
  const std::size_t index = (size - 1) / kept_frames::step;
  if (index < kept_frames::sizes && (kept.count[index] + 1) * (index + 1) <= kept_frames::steps_of_a_size) {
    if (kept.state != kept_frames::open) {
      if (kept.state == kept_frames::closed) return ::operator delete(memory);
      at_exit.touch();
      kept.state = kept_frames::open;
    }
    kept.first[index] = ::new (memory) kept_frames::frame{kept.first[index]};
    ++kept.count[index];
    return;
  }
#endif
  ::operator delete(memory);
}

}  // namespace detail

UPSHIFT_END
