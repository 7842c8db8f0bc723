// Plaintext and matrix servers on coroutines of Asio (the library that Boost.Asio is), one thread.
// The file is built twice: over epoll, Asio's default, and over io_uring for sockets and timers
// (ASIO_HAS_IO_URING with ASIO_DISABLE_EPOLL).
#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/channel.hpp>

#include "server.hpp"

using asio::awaitable;
using asio::ip::tcp;

// Errors are values: otherwise the benchmark would include an exception per closed connection.
constexpr auto as_result = asio::experimental::as_tuple(asio::use_awaitable);
using channel = asio::experimental::channel<void(asio::error_code, std::vector<char>)>;

awaitable<void> plaintext(tcp::socket peer) {
  server::plaintext requests;
  std::string replies;
  std::vector<char> buffer(8192);
  while (true) {
    auto [error, count] = co_await peer.async_read_some(asio::buffer(buffer), as_result);
    if (error) co_return;
    const bool open = requests.feed({buffer.data(), count}, replies);
    if (!replies.empty()) {
      auto [failed, sent] = co_await asio::async_write(peer, asio::buffer(replies), as_result);
      if (failed) co_return;
      replies.clear();
    }
    if (!open) co_return;
  }
}

struct connection {
  connection(tcp::socket peer) : peer(std::move(peer)), to_compute(this->peer.get_executor(), server::queue), to_send(this->peer.get_executor(), server::queue) {}
  tcp::socket peer;
  channel to_compute;
  channel to_send;
};

awaitable<void> receive(std::shared_ptr<connection> conn) {
  server::frames cutter;
  std::vector<char> buffer(8192);
  while (true) {
    auto [error, count] = co_await conn->peer.async_read_some(asio::buffer(buffer), as_result);
    if (error) break;
    std::string_view chunk(buffer.data(), count);
    bool sent = true;
    while (sent) {
      auto payload = cutter.next(chunk);
      if (!payload) break;
      auto [refused] = co_await conn->to_compute.async_send(asio::error_code(), std::move(*payload), as_result);
      sent = !refused;
    }
    if (!sent || cutter.broken) break;
  }
  conn->to_compute.close();
}

awaitable<void> compute(std::shared_ptr<connection> conn) {
  while (true) {
    auto [error, payload] = co_await conn->to_compute.async_receive(as_result);
    if (error) break;
    auto reply = server::square(payload, server::order(static_cast<std::uint32_t>(payload.size())));
    auto [refused] = co_await conn->to_send.async_send(asio::error_code(), std::move(reply), as_result);
    if (refused) break;
  }
  conn->to_send.close();
}

awaitable<void> send(std::shared_ptr<connection> conn) {
  while (true) {
    auto [error, reply] = co_await conn->to_send.async_receive(as_result);
    if (error) break;
    auto [failed, count] = co_await asio::async_write(conn->peer, asio::buffer(reply), as_result);
    if (failed) break;
  }
  asio::error_code ignored;
  conn->peer.shutdown(tcp::socket::shutdown_send, ignored);
}

awaitable<void> serve(asio::io_context& context, server::options options) {
  const auto colon = options.address.rfind(':');
  const tcp::endpoint endpoint(asio::ip::make_address(options.address.substr(0, colon)), static_cast<unsigned short>(std::stoi(options.address.substr(colon + 1))));
  tcp::acceptor acceptor(context, endpoint);
  acceptor.listen(1024);
  server::announce(acceptor.native_handle());
  while (true) {
    auto [error, peer] = co_await acceptor.async_accept(as_result);
    if (error) continue;
    server::no_delay(peer.native_handle());
    if (options.work != "matrix") {
      asio::co_spawn(context, plaintext(std::move(peer)), asio::detached);
      continue;
    }
    auto conn = std::make_shared<connection>(std::move(peer));
    asio::co_spawn(context, receive(conn), asio::detached);
    asio::co_spawn(context, compute(conn), asio::detached);
    asio::co_spawn(context, send(conn), asio::detached);
  }
}

int main(int argc, char** argv) {
  // One thread: no locks.
  asio::io_context context(ASIO_CONCURRENCY_HINT_UNSAFE);
  asio::co_spawn(context, serve(context, server::parse(argc, argv)), asio::detached);
  context.run();
}
