// The common code of the example servers: command line, announcement, matrix protocol, and a
// scanner of HTTP requests. It is independent of coroutines, so the servers of other libraries in
// bench/peers/cpp use it too.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server {

struct options {
  /// First word of the command line, if any.
  std::string work;
  std::string variant;
  std::string address = "127.0.0.1:0";
  std::string root = ".";
  int level = 32;
  unsigned vcpus = 1;
  /// The CPU of the first vCPU, if any.
  std::vector<std::uint32_t> pins;
};

/// Parses `[WORK] [--listen ADDR:PORT] [--variant V] [--level L] [--vcpus N] [--pin CPU] [--root
/// DIR]`; ends the process if that fails.
inline options parse(int argc, char** argv) {
  options parsed;
  int index = 1;
  if (index < argc && argv[index][0] != '-') parsed.work = argv[index++];
  for (; index + 1 < argc; index += 2) {
    const std::string_view name = argv[index];
    const char* value = argv[index + 1];
    if (name == "--listen") {
      parsed.address = value;
    } else if (name == "--variant") {
      parsed.variant = value;
    } else if (name == "--root") {
      parsed.root = value;
    } else if (name == "--level") {
      parsed.level = std::atoi(value);
    } else if (name == "--pin") {
      parsed.pins = {static_cast<std::uint32_t>(std::atoi(value))};
    } else if (name == "--vcpus") {
      parsed.vcpus = static_cast<unsigned>(std::atoi(value));
    } else {
      break;
    }
  }
  if (index != argc) {
    std::fprintf(stderr, "usage: %s [plaintext|matrix] [--listen ADDR:PORT] [--level L] [--vcpus N] [--pin CPU] [--root DIR]\n", argv[0]);
    std::exit(2);
  }
  return parsed;
}

/// Prints `listening on ADDR:PORT`.
inline void announce(int fd) {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  std::printf("listening on %s:%d\n", inet_ntoa(bound.sin_addr), ntohs(bound.sin_port));
  std::fflush(stdout);
}

inline void no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The matrix protocol. A request is the length of its numbers in bytes (4 bytes, little-endian) and
// n * n numbers of 8 bytes. The reply is the square of the matrix in the same form, computed modulo
// 2^64.

/// Length of the header of a frame, in bytes.
inline constexpr std::size_t header = 4;
/// Largest order of a matrix.
inline constexpr std::size_t max_n = 1024;
/// Capacity, in frames, of each of the two queues of a connection.
inline constexpr std::size_t queue = 16;

/// Returns the order of a payload of `bytes` bytes; 0 if the length is invalid.
inline std::size_t order(std::uint32_t bytes) {
  if (bytes == 0 || bytes > 8 * max_n * max_n) return 0;
  std::size_t n = 1;
  while (8 * n * n < bytes) ++n;
  return 8 * n * n == bytes ? n : 0;
}

/// Returns the reply frame for a payload of order n.
inline std::vector<char> square(const std::vector<char>& payload, std::size_t n) {
  std::vector<char> reply(header + payload.size());
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::memcpy(reply.data(), &length, header);
  std::uint64_t sums[max_n];
  const auto cell = [&](std::size_t i, std::size_t j) {
    std::uint64_t value;
    std::memcpy(&value, payload.data() + 8 * (i * n + j), sizeof value);
    return value;
  };
  for (std::size_t i = 0; i < n; ++i) {
    std::memset(sums, 0, 8 * n);
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint64_t a = cell(i, k);
      for (std::size_t j = 0; j < n; ++j) sums[j] += a * cell(k, j);
    }
    std::memcpy(reply.data() + header + 8 * n * i, sums, 8 * n);
  }
  return reply;
}

/// Splits the bytes of a connection into payloads.
class frames {
 public:
  /// Takes bytes from the front of `chunk` to the end of a frame, and returns the payload. Returns
  /// none if the bytes are used up or are invalid (`broken`).
  std::optional<std::vector<char>> next(std::string_view& chunk) {
    if (head_ < header) {
      const std::size_t part = take(chunk, header - head_);
      std::memcpy(length_ + head_, chunk.data(), part);
      chunk.remove_prefix(part);
      head_ += part;
      if (head_ < header) return std::nullopt;
      std::uint32_t length;
      std::memcpy(&length, length_, header);
      if (order(length) == 0) {
        broken = true;
        return std::nullopt;
      }
      missing_ = length;
      payload_.reserve(missing_ < 65536 ? missing_ : 65536);
    }
    const std::size_t part = take(chunk, missing_);
    payload_.insert(payload_.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(part));
    chunk.remove_prefix(part);
    missing_ -= part;
    if (missing_ != 0) return std::nullopt;
    head_ = 0;
    return std::exchange(payload_, {});
  }

  /// Set once the bytes are invalid.
  bool broken = false;

 private:
  static std::size_t take(std::string_view chunk, std::size_t max) { return chunk.size() < max ? chunk.size() : max; }

  char length_[header];
  std::size_t head_ = 0;
  std::size_t missing_ = 0;
  std::vector<char> payload_;
};

// The part of HTTP/1.1 that GET and HEAD need.

/// Largest length of a request's head, in bytes.
inline constexpr std::size_t max_head = 8192;
/// Largest number of header fields of a request.
inline constexpr int max_headers = 64;

struct request {
  std::string_view method;
  std::string_view target;
  int minor = 1;
  bool close = false;
  bool keep = false;
  bool has_body = false;
};

/// Returns whether `a` equals `lower`, a text in lower case, without regard to case.
inline bool same(std::string_view a, std::string_view lower) {
  if (a.size() != lower.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] + 32) : a[i];
    if (c != lower[i]) return false;
  }
  return true;
}

inline std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

inline bool is_token(std::string_view text) {
  for (const unsigned char c : text) {
    if (c <= ' ' || c >= 127 || std::strchr("\"(),/:;<=>?@[\\]{}", c) != nullptr) return false;
  }
  return !text.empty();
}

/// Returns the length of the head at the front of `input`; 0 if the head is incomplete, the
/// negative status if it is refused.
inline int scan(std::string_view input, request& into) {
  const std::string_view window = input.substr(0, max_head);
  const auto incomplete = [&] { return window.size() == max_head ? -431 : 0; };
  std::size_t line_end = window.find('\n');
  if (line_end == std::string_view::npos) return incomplete();
  std::string_view line = window.substr(0, line_end);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos) return -400;
  const std::string_view version = line.substr(second + 1);
  into = request{};
  into.method = line.substr(0, first);
  into.target = line.substr(first + 1, second - first - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return -400;
  if (!is_token(into.method) || into.target.empty()) return -400;
  into.minor = version.back() - '0';
  for (int count = 0;; ++count) {
    const std::size_t begin = line_end + 1;
    line_end = window.find('\n', begin);
    if (line_end == std::string_view::npos) return incomplete();
    line = window.substr(begin, line_end - begin);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) break;
    if (count == max_headers) return -431;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return -400;
    const std::string_view name = line.substr(0, colon);
    std::string_view value = trim(line.substr(colon + 1));
    if (name.size() == 10 && same(name, "connection")) {
      while (true) {
        const std::size_t comma = value.find(',');
        const std::string_view token = trim(value.substr(0, comma));
        into.close |= same(token, "close");
        into.keep |= same(token, "keep-alive");
        if (comma == std::string_view::npos) break;
        value.remove_prefix(comma + 1);
      }
    } else if (name.size() == 14 && same(name, "content-length")) {
      if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) return -400;
      into.has_body |= value.find_first_not_of('0') != std::string_view::npos;
    } else if (name.size() == 17 && same(name, "transfer-encoding")) {
      into.has_body = true;
    }
  }
  return static_cast<int>(line_end + 1);
}

inline constexpr std::string_view body = "Hello, World!";
inline constexpr std::string_view reply = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
inline constexpr std::string_view reply_keep =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\nConnection: keep-alive\r\n\r\nHello, World!";
inline constexpr std::string_view reply_close =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\nConnection: close\r\n\r\nHello, World!";

inline std::string refusal(int status) {
  const char* reason = status == 405   ? "405 Method Not Allowed\r\nAllow: GET, HEAD"
                       : status == 413 ? "413 Content Too Large"
                       : status == 431 ? "431 Request Header Fields Too Large"
                                       : "400 Bad Request";
  return std::string("HTTP/1.1 ") + reason + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
}

/// Answers requests with the text, however their bytes are split; one object per connection.
class plaintext {
 public:
  /// Appends replies to `out`. Returns false if the connection must be closed after the replies.
  bool feed(std::string_view chunk, std::string& out) {
    std::string_view input = chunk;
    if (!rest_.empty()) input = rest_.append(chunk);
    std::size_t consumed = 0;
    bool open = true;
    while (open && consumed < input.size()) {
      request req;
      int length = scan(input.substr(consumed), req);
      if (length == 0) break;
      if (length > 0 && req.method != "GET" && req.method != "HEAD") length = -405;
      if (length > 0 && req.has_body) length = -413;
      if (length < 0) {
        out += refusal(-length);
        return false;
      }
      const bool close = req.close || (req.minor == 0 && !req.keep);
      std::string_view text = close ? reply_close : req.minor == 0 ? reply_keep : reply;
      if (req.method == "HEAD") text.remove_suffix(body.size());
      out += text;
      consumed += static_cast<std::size_t>(length);
      open = !close;
    }
    if (rest_.empty()) {
      rest_.assign(input.substr(consumed));
    } else {
      rest_.erase(0, consumed);
    }
    return open;
  }

 private:
  std::string rest_;
};

}  // namespace server
