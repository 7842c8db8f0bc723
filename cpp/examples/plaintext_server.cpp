// `Hello, World!` over HTTP/1.1 with keep-alive and pipelining: a coroutine per connection.
//
//     plaintext_server --listen 127.0.0.1:8080 --vcpus 1 --level 4
#include <upshift/upshift.hpp>

#include "server.hpp"

using namespace upshift;

task<> converse(stream peer) {
  server::plaintext requests;
  std::string replies;
  while (true) {
    auto data = co_await peer.recv(as_result);
    if (!data || data->empty()) co_return;
    const bool open = requests.feed(data->view(), replies);
    // The buffer returns to the runtime before the server waits for a client that does not read.
    data->reset();
    if (!replies.empty()) {
      auto written = co_await peer.write_all(buffer(std::move(replies)), as_result);
      if (!written.done) co_return;
      replies.clear();
    }
    if (!open) co_return;
  }
}

task<> serve(server::options options) {
  auto listening = listener::tcp(options.address);
  server::announce(listening.fd());
  while (true) {
    auto peer = co_await listening.accept(as_result);
    if (!peer) continue;
    server::no_delay(peer->fd());
    spawn(converse(std::move(*peer)), level{options.level}).detach();
  }
}

int main(int argc, char** argv) {
  const auto options = server::parse(argc, argv);
  config settings;
  settings.vcpus = options.vcpus;
  settings.main_level = 0;
  settings.pins = options.pins.data();
  settings.pins_len = options.pins.size();
  runtime(settings).block_on(serve(options));
}
