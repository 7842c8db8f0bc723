// A server that squares matrices. Each connection has three coroutines, which receive, compute and
// send, connected by two bounded queues. The protocol is, byte for byte, the protocol of
// `upshift matrix-server`.
//
//     matrix_server --listen 127.0.0.1:8080 --vcpus 1 --level 4
#include <upshift/upshift.hpp>

#include "server.hpp"

using namespace upshift;

using frame = std::unique_ptr<std::vector<char>>;

/// Reads and drops further bytes before the server closes a connection because of a client's error.
/// The client may still be sending. The function returns after 64 reads or 200 ms without bytes.
task<> discard(reader& input) {
  for (int i = 0; i < 64; ++i) {
    auto data = co_await timeout(std::chrono::milliseconds(200), input.recv(as_result));
    if (!data || !*data || (*data)->empty()) co_return;
  }
}

task<> receive(reader input, sender<frame> to) {
  server::frames cutter;
  while (true) {
    auto data = co_await input.recv(as_result);
    if (!data || data->empty()) co_return;
    std::string_view chunk = data->view();
    while (auto payload = cutter.next(chunk)) {
      if (!co_await to.send(std::make_unique<std::vector<char>>(std::move(*payload)), as_result)) co_return;
    }
    if (cutter.broken) break;
  }
  to.close();
  co_await discard(input);
}

task<> compute(receiver<frame> from, sender<frame> to) {
  while (auto payload = co_await from.recv()) {
    auto& numbers = **payload;
    auto reply = server::square(numbers, server::order(static_cast<std::uint32_t>(numbers.size())));
    if (!co_await to.send(std::make_unique<std::vector<char>>(std::move(reply)), as_result)) co_return;
  }
}

task<> send(receiver<frame> from, writer output) {
  while (auto reply = co_await from.recv()) {
    auto written = co_await output.write_all(buffer(std::move(**reply)), as_result);
    if (!written.done) co_return;
  }
}

task<> serve(server::options options) {
  auto listening = listener::tcp(options.address);
  server::announce(listening.fd());
  const level work_level{options.level};
  while (true) {
    auto peer = co_await listening.accept(as_result);
    if (!peer) continue;
    server::no_delay(peer->fd());
    auto [input, output] = std::move(*peer).split();
    auto [to_compute, from_receive] = channel<frame>(server::queue);
    auto [to_send, from_compute] = channel<frame>(server::queue);
    spawn(send(std::move(from_compute), std::move(output)), work_level).detach();
    spawn(compute(std::move(from_receive), std::move(to_send)), work_level).detach();
    spawn(receive(std::move(input), std::move(to_compute)), work_level).detach();
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
