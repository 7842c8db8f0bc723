// A plaintext server in the published design of Kuro, the C++ framework of the slides. Tasks start
// at once and destroy themselves (suspend_never at both ends), and a slab gives each operation a
// token. There is one ring with one entry per operation, and the loop submits and polls for
// completions without ever waiting.
//
// Defects of the published design are kept: the loop uses a whole CPU when idle; a task cannot be
// cancelled, joined or destroyed by its owner; a receive holds memory while its connection idles.
//
// Defects of the published code are fixed, so that there is a server to measure. A negative result
// ends its connection, not the process. The slab returns references to its slots, not the address
// of a local copy. Frames are freed by rule, not by luck. A full submission queue is submitted,
// where the original uses a null entry. Replies fit their buffer, where the original writes a
// kilobyte of text and a head into a kilobyte.
//
// On several CPUs the design is as published: a thread for each, with its own ring, slab and
// listening socket (SO_REUSEPORT). A task stays on its thread.
#include <liburing.h>

#include <coroutine>
#include <deque>
#include <thread>

#include "server.hpp"

namespace {

thread_local io_uring ring;

struct pending_operation {
  std::coroutine_handle<> resume;
  int result;
};

/// The slots of pending operations, by token. Slots do not move.
struct slab {
  std::deque<pending_operation> slots;
  std::vector<std::size_t> free;
  std::size_t take() {
    if (free.empty()) {
      slots.emplace_back();
      return slots.size() - 1;
    }
    const std::size_t token = free.back();
    free.pop_back();
    return token;
  }
};

thread_local slab operations;

struct task {
  struct promise_type {
    task get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

io_uring_sqe* entry() {
  io_uring_sqe* sqe;
  while ((sqe = io_uring_get_sqe(&ring)) == nullptr) io_uring_submit(&ring);
  return sqe;
}

struct operation {
  explicit operation(io_uring_sqe* sqe) : token(operations.take()) { io_uring_sqe_set_data64(sqe, token); }
  std::size_t token;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> here) { operations.slots[token].resume = here; }
  int await_resume() {
    operations.free.push_back(token);
    return operations.slots[token].result;
  }
};

operation receive(int fd, char* buffer, std::size_t size) {
  io_uring_sqe* sqe = entry();
  io_uring_prep_recv(sqe, fd, buffer, size, 0);
  return operation(sqe);
}

operation send(int fd, const char* data, std::size_t size) {
  io_uring_sqe* sqe = entry();
  io_uring_prep_send(sqe, fd, data, size, MSG_NOSIGNAL);
  return operation(sqe);
}

operation accept(int fd) {
  io_uring_sqe* sqe = entry();
  io_uring_prep_accept(sqe, fd, nullptr, nullptr, SOCK_CLOEXEC);
  return operation(sqe);
}

task converse(int fd) {
  server::no_delay(fd);
  server::plaintext requests;
  std::string replies;
  std::vector<char> buffer(8192);
  bool open = true;
  while (open) {
    const int count = co_await receive(fd, buffer.data(), buffer.size());
    if (count <= 0) break;
    open = requests.feed({buffer.data(), static_cast<std::size_t>(count)}, replies);
    std::string_view rest = replies;
    while (!rest.empty()) {
      const int sent = co_await send(fd, rest.data(), rest.size());
      if (sent <= 0) {
        open = false;
        break;
      }
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
    replies.clear();
  }
  close(fd);
}

task serve(int listener) {
  while (true) {
    const int fd = co_await accept(listener);
    if (fd >= 0) converse(fd);
  }
}

/// Returns a listening socket at the address, which other threads may share if `is_shared`.
int open_listener(const sockaddr_in& address, bool is_shared) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (is_shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  const bool is_bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1024) == 0;
  return is_bound ? fd : -1;
}

/// Serves forever; returns only if the ring cannot be created.
void run(int fd) {
  if (io_uring_queue_init(1024, &ring, 0) != 0) return;
  serve(fd);
  while (true) {
    io_uring_submit(&ring);
    io_uring_cqe* completion;
    while (io_uring_peek_cqe(&ring, &completion) == 0) {
      const auto token = static_cast<std::size_t>(io_uring_cqe_get_data64(completion));
      operations.slots[token].result = completion->res;
      io_uring_cqe_seen(&ring, completion);
      operations.slots[token].resume.resume();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = server::parse(argc, argv);
  if (options.work == "matrix") return 2;
  const auto colon = options.address.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(options.address.substr(colon + 1))));
  inet_pton(AF_INET, options.address.substr(0, colon).c_str(), &address.sin_addr);
  const int listener = open_listener(address, options.vcpus > 1);
  if (listener < 0) return 1;
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < options.vcpus; ++i) {
    const int fd = open_listener(address, true);
    if (fd < 0) return 1;
    threads.emplace_back(run, fd);
  }
  server::announce(listener);
  run(listener);
  return 2;
}
