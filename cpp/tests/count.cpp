// Operations whose instructions callgrind counts, like the operations of scheduler/counts:
// `count OPERATION TIMES`.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <upshift/upshift.hpp>

using namespace upshift;

static task<> yield_alone(int times) {
  for (int i = 0; i < times; ++i) co_await yield_now();
}

static task<> yields(int times) {
  std::vector<join_handle<>> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(spawn(yield_alone(times / 8), level{20}));
  for (auto& handle : handles) co_await handle;
}

static task<int> answer(int n) { co_return n; }

static task<> spawn_join(int times) {
  for (int i = 0; i < times; ++i) {
    auto handle = spawn(answer(i));
    (void)co_await handle;
  }
}

static task<> hop(int times) {
  auto [to, from] = channel<int>(1);
  auto sends = spawn([](sender<int> to, int times) -> task<> {
    for (int i = 0; i < times; ++i) co_await to.send(i);
  }(std::move(to), times));
  while (co_await from.recv()) {
  }
  co_await sends;
}

static std::string_view text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// A request and its reply over TCP, like `echo` of scheduler/counts: both ends, in the caller's
/// memory.
static task<> echo(int times) {
  auto listening = listener::tcp("127.0.0.1:0");
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&bound), &size);
  auto server = spawn([](listener& listening) -> task<> {
    auto peer = co_await listening.accept();
    std::byte request[64];
    while (co_await peer.read_exact(request) == sizeof request) co_await peer.write_all(text(request));
  }(listening));
  {
    auto peer = co_await connect_tcp("127.0.0.1:" + std::to_string(ntohs(bound.sin_port)));
    std::byte reply[64] = {};
    for (int i = 0; i < times; ++i) {
      co_await peer.write_all(text(reply));
      (void)co_await peer.read_exact(reply);
    }
  }
  co_await server;
}

static constexpr char reply[65] = "7777777777777777777777777777777777777777777777777777777777777777";

/// A request like `request` of scheduler/counts: received in buffers of the runtime, sent through
/// the ring.
static task<> request(int times) {
  auto listening = listener::tcp("127.0.0.1:0");
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&bound), &size);
  auto server = spawn([](listener& listening) -> task<> {
    auto peer = co_await listening.accept();
    while (!(co_await peer.recv()).empty()) co_await peer.write_all(buffer::constant({reply, 64}));
  }(listening));
  {
    auto peer = co_await connect_tcp("127.0.0.1:" + std::to_string(ntohs(bound.sin_port)));
    for (int i = 0; i < times; ++i) {
      co_await peer.write_all(buffer::constant({reply, 64}));
      (void)co_await peer.recv();
    }
  }
  co_await server;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view name = argv[1];
  const int times = std::atoi(argv[2]);
  config settings;
  settings.vcpus = 1;
  settings.spin_ns = 0;
  settings.reap_interval_ns = 1'000'000'000;
  runtime rt(settings);
  if (name == "yield-alone") {
    rt.block_on(yield_alone(times));
  } else if (name == "yield") {
    rt.block_on(yields(times));
  } else if (name == "spawn-join") {
    rt.block_on(spawn_join(times));
  } else if (name == "hop") {
    rt.block_on(hop(times));
  } else if (name == "request") {
    rt.block_on(request(times));
  } else if (name == "echo") {
    rt.block_on(echo(times));
  } else {
    return 2;
  }
}
