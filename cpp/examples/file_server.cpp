// An HTTP file server, like the server in the slides on io_uring and coroutines that
// docs/papers.md cites: a coroutine per connection, and a co_await for every wait. Differences from
// the slides' server: an error ends one connection and not the process, a path cannot leave the
// root, and a file may be longer than a buffer.
//
//     file_server --root . --listen 127.0.0.1:8080
#include <sys/stat.h>
#include <upshift/upshift.hpp>

#include "server.hpp"

using namespace upshift;

/// Number of bytes that are read and sent at once.
constexpr std::size_t chunk = 64 * 1024;

/// Returns the path of a target beneath the root, with percent signs decoded; empty for an invalid
/// target.
std::string path_of(std::string_view target) {
  std::string path;
  target = target.substr(0, target.find('?'));
  for (std::size_t i = 0; i < target.size(); ++i) {
    char c = target[i];
    if (c == '%') {
      if (i + 2 >= target.size() || !std::isxdigit(static_cast<unsigned char>(target[i + 1])) ||
          !std::isxdigit(static_cast<unsigned char>(target[i + 2])))
        return {};
      c = static_cast<char>(std::stoi(std::string(target.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    }
    if (c == '\0') return {};
    path += c;
  }
  const std::size_t begin = path.find_first_not_of('/');
  return begin == std::string::npos ? "index.html" : path.substr(begin);
}

task<bool> answer(stream& peer, const file& root, const server::request& req) {
  if (req.method != "GET" && req.method != "HEAD") {
    (void)co_await peer.write_all(std::string_view("HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n\r\n"), as_result);
    co_return false;
  }
  const std::string path = path_of(req.target);
  // An invalid target has the empty path, which is not found. (No conditional expression contains a
  // co_await: g++ 12 miscompiles it.)
  auto opened = co_await root.open_beneath(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, as_result);
  auto size = result<std::size_t>::failure(-ENOENT);
  if (opened) size = co_await opened->size(as_result);
  struct stat status{};
  // A pipe or a device has no length for the response.
  if (!size || fstat(opened->fd(), &status) != 0 || !S_ISREG(status.st_mode)) {
    constexpr std::string_view missing = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nnot found\n";
    auto sent = co_await peer.write_all(req.method == "HEAD" ? missing.substr(0, missing.size() - 10) : missing, as_result);
    co_return sent.has_value();
  }
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: " + std::to_string(*size) + "\r\n\r\n";
  if (!co_await peer.write_all(std::string_view(head), as_result)) co_return false;
  if (req.method == "HEAD") co_return true;
  buffer piece(chunk);
  for (std::size_t offset = 0; offset < *size;) {
    auto read = co_await opened->read_at(std::move(piece), offset, as_result);
    // The file has shrunk, so the promised length cannot be sent.
    if (!read.count || *read.count == 0) co_return false;
    const std::size_t rest = *size - offset;
    if (read.buf.size() > rest) read.buf.resize(rest);
    offset += read.buf.size();
    auto written = co_await peer.write_all(std::move(read.buf), as_result);
    if (!written.done) co_return false;
    piece = std::move(written.buf);
  }
  co_return true;
}

task<> converse(stream peer, const file& root) {
  std::string input;
  while (true) {
    server::request req;
    const int length = server::scan(input, req);
    if (length < 0) {
      (void)co_await peer.write_all(std::string_view(server::refusal(-length)), as_result);
      co_return;
    }
    if (length == 0) {
      auto data = co_await peer.recv(as_result);
      if (!data || data->empty()) co_return;
      input.append(data->view());
      continue;
    }
    if (req.has_body) {
      (void)co_await peer.write_all(std::string_view(server::refusal(413)), as_result);
      co_return;
    }
    const bool close = req.close || (req.minor == 0 && !req.keep);
    if (!co_await answer(peer, root, req) || close) co_return;
    input.erase(0, static_cast<std::size_t>(length));
  }
}

task<> serve(server::options options) {
  const file root = co_await file::open(options.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  auto listening = listener::tcp(options.address);
  server::announce(listening.fd());
  while (true) {
    auto peer = co_await listening.accept(as_result);
    if (!peer) continue;
    server::no_delay(peer->fd());
    spawn(converse(std::move(*peer), root), level{options.level}).detach();
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
