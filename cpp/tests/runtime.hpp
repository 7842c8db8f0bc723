// A runtime for a test, and objects that tests count.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <chrono>
#include <upshift/upshift.hpp>

#include "check.hpp"

namespace u = upshift;
using namespace std::chrono_literals;

/// Runs a task on one vCPU, so that events occur in the order of the levels.
template <class T>
T on_one_vcpu(u::task<T> main, int level = 32) {
  u::config settings;
  settings.vcpus = 1;
  settings.main_level = static_cast<std::uint32_t>(level);
  auto runtime = u::runtime::make(settings);
  CHECK(runtime);
  return runtime->block_on(std::move(main));
}

template <class T>
T on_two_vcpus(u::task<T> main) {
  u::config settings;
  settings.vcpus = 2;
  auto runtime = u::runtime::make(settings);
  CHECK(runtime);
  return runtime->block_on(std::move(main));
}

inline u::task<int> twice(int n) {
  co_await u::yield_now();
  co_return 2 * n;
}

/// An object that counts its live instances.
struct counted {
  static inline std::atomic<int> alive = 0;
  counted() { ++alive; }
  counted(const counted&) { ++alive; }
  ~counted() { --alive; }
};

/// Buffers that count their instances. Their release frees the memory.
struct tracked {
  static inline std::atomic<int> alive = 0;
  static u::buffer make(std::size_t capacity) {
    ++alive;
    return u::buffer::with_release(new std::byte[capacity], 0, capacity,
                                   [](void*, std::uint8_t* data, std::size_t) {
                                     --alive;
                                     delete[] reinterpret_cast<std::byte*>(data);
                                   },
                                   nullptr);
  }
};

/// Returns two connected sockets.
inline std::pair<u::stream, u::stream> connected() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  auto one = u::stream::from_fd(fds[0], u::as_result);
  auto other = u::stream::from_fd(fds[1], u::as_result);
  CHECK(one && other);
  return {std::move(*one), std::move(*other)};
}
