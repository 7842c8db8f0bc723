// Internet addresses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <string>
#include <string_view>

#include "error.hpp"

UPSHIFT_BEGIN

namespace detail {

/// Returns the string as a C string. Returns null if it contains a NUL, because C would end the
/// string there; callers turn null into EINVAL.
inline const char* c_string(const std::string& text) noexcept { return text.find('\0') == std::string::npos ? text.c_str() : nullptr; }

}  // namespace detail

/// An address and a port; the fields are those of upshift_addr.
struct address : upshift_addr {
  address() noexcept : upshift_addr{} {}
  explicit address(const upshift_addr& raw) noexcept : upshift_addr(raw) {}

  /// Parses a numeric address: `127.0.0.1:80`, `[::1]:80`. Names are not resolved.
  static result<address> parse(std::string_view text) {
    const auto failed = [] { return result<address>::failure(-EINVAL); };
    const auto colon = text.rfind(':');
    if (colon == std::string_view::npos) return failed();
    address parsed;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, parsed.port);
    if (error != std::errc() || rest != end) return failed();
    std::string_view host = text.substr(0, colon);
    const bool is_v6 = host.size() >= 2 && host.front() == '[' && host.back() == ']';
    if (is_v6) host = host.substr(1, host.size() - 2);
    parsed.version = is_v6 ? 6 : 4;
    const std::string number(host);
    const char* const raw = detail::c_string(number);
    if (raw == nullptr || inet_pton(is_v6 ? AF_INET6 : AF_INET, raw, parsed.ip) != 1) return failed();
    return parsed;
  }

  /// Formats the address as parse() expects it, without the scope.
  std::string to_string() const {
    char host[INET6_ADDRSTRLEN] = "";
    inet_ntop(version == 6 ? AF_INET6 : AF_INET, ip, host, sizeof host);
    std::string text;
    if (version == 6) text += '[';
    text += host;
    if (version == 6) text += ']';
    text += ':';
    return text += std::to_string(port);
  }

  friend bool operator==(const address& a, const address& b) noexcept {
    return a.version == b.version && a.port == b.port && a.scope == b.scope && std::memcmp(a.ip, b.ip, sizeof a.ip) == 0;
  }
};

namespace detail {

/// Queries an address of a socket by getsockname or getpeername. Fails with EAFNOSUPPORT if the
/// socket is not an internet socket.
template <class Query>
result<address> address_of(int fd, Query query) {
  sockaddr_storage raw_address{};
  socklen_t size = sizeof raw_address;
  if (query(fd, reinterpret_cast<sockaddr*>(&raw_address), &size) != 0) return result<address>::failure(-errno);
  address converted;
  if (raw_address.ss_family == AF_INET) {
    sockaddr_in raw;
    std::memcpy(&raw, &raw_address, sizeof raw);
    converted.version = 4;
    converted.port = ntohs(raw.sin_port);
    std::memcpy(converted.ip, &raw.sin_addr, sizeof raw.sin_addr);
  } else if (raw_address.ss_family == AF_INET6) {
    sockaddr_in6 raw;
    std::memcpy(&raw, &raw_address, sizeof raw);
    converted.version = 6;
    converted.port = ntohs(raw.sin6_port);
    converted.scope = raw.sin6_scope_id;
    std::memcpy(converted.ip, &raw.sin6_addr, sizeof raw.sin6_addr);
  } else {
    return result<address>::failure(-EAFNOSUPPORT);
  }
  return converted;
}

inline result<address> local_address_of(int fd) { return address_of(fd, getsockname); }
inline result<address> peer_address_of(int fd) { return address_of(fd, getpeername); }

}  // namespace detail

UPSHIFT_END
