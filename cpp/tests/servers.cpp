// The example servers send the same bytes as the servers of the command `upshift`, for any input of
// a client.
//
//     servers DIRECTORY-OF-EXAMPLES [PATH-OF-UPSHIFT]
//
// Without the second argument only the file server is tested, against the files themselves.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"

namespace {

/// A server under test, which ends with this object.
class server {
 public:
  explicit server(std::vector<std::string> command) {
    int out[2];
    CHECK(pipe(out) == 0);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(out[1], 1);
      close(out[0]);
      close(out[1]);
      std::vector<char*> args;
      for (auto& word : command) args.push_back(word.data());
      args.push_back(nullptr);
      execv(args[0], args.data());
      std::perror(args[0]);
      _exit(127);
    }
    close(out[1]);
    std::string output;
    for (char c; read(out[0], &c, 1) == 1;) {
      output += c;
      const auto position = output.find("127.0.0.1:");
      if (c == '\n' && position != std::string::npos) {
        port_ = std::stoi(output.substr(position + 10));
        break;
      }
    }
    out_ = out[0];
    CHECK(port_ != 0);
  }
  server(const server&) = delete;
  ~server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(out_);
  }

  /// Sends `bytes` in parts of random sizes; returns all bytes that the server sends before it
  /// closes the connection. With `shuts_down` the client ends its sending direction.
  std::string answer(const std::string& bytes, unsigned seed, bool shuts_down = true) const {
    std::mt19937 random(seed);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port_));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    std::string all;
    char room[65536];
    const auto take = [&](int flags) {
      const ssize_t got = recv(fd, room, sizeof room, flags);
      if (got > 0) all.append(room, static_cast<std::size_t>(got));
      return got;
    };
    for (std::size_t sent = 0; sent < bytes.size();) {
      const std::size_t part = std::min<std::size_t>(bytes.size() - sent, 1 + random() % (random() % 4 == 0 ? 20'000 : 200));
      if (send(fd, bytes.data() + sent, part, MSG_NOSIGNAL) < 0) break;
      sent += part;
      while (take(MSG_DONTWAIT) > 0) {
      }
    }
    if (shuts_down) shutdown(fd, SHUT_WR);
    while (take(0) > 0) {
    }
    close(fd);
    return all;
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  int port_ = 0;
};

std::string frame(std::size_t n, std::mt19937_64& random) {
  const auto length = static_cast<std::uint32_t>(8 * n * n);
  std::string bytes(4 + length, '\0');
  std::memcpy(bytes.data(), &length, 4);
  for (std::size_t i = 0; i < n * n; ++i) {
    const std::uint64_t value = random();
    std::memcpy(bytes.data() + 4 + 8 * i, &value, 8);
  }
  return bytes;
}

void matrices(const std::string& examples, const std::string& upshift) {
  const server example({examples + "/matrix_server", "--listen", "127.0.0.1:0"});
  const server reference({upshift, "matrix-server", "--listen", "127.0.0.1:0", "--vcpus", "1"});
  std::mt19937_64 random(7);
  std::size_t bytes = 0;
  for (unsigned round = 0; round < 12; ++round) {
    std::string request;
    for (std::size_t n = 1; n <= 24; ++n) request += frame(round == 0 ? n : 1 + random() % 40, random);
    if (round == 1) request = frame(200, random);
    // Invalid bytes end the connection after the replies to earlier frames.
    const bool broken = round % 4 == 3;
    if (broken) request += std::string("\x07\x00\x00\x00", 4);
    const std::string expected = reference.answer(request, round);
    const std::string got = example.answer(request, round);
    CHECK(got == expected);
    CHECK(got.size() == (broken ? request.size() - 4 : request.size()));
    bytes += got.size();
  }
  std::printf("matrix_server: %zu bytes, the same as those of upshift\n", bytes);
}

void plaintext(const std::string& examples, const std::string& upshift) {
  const server example({examples + "/plaintext_server", "--listen", "127.0.0.1:0"});
  const server reference({upshift, "plaintext-server", "--listen", "127.0.0.1:0", "--vcpus", "1"});
  std::string many;
  for (int i = 0; i < 200; ++i) many += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
  const std::string requests[] = {
      many,
      "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nConnection: Close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
      "GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
      "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
      "GET / HTTP/1.1\r\nno colon\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "GET / HTTP/1.1\r\nA: " + std::string(9000, 'a') + "\r\n\r\n",
      "GET / HT",
  };
  for (const auto& request : requests) {
    const std::string expected = reference.answer(request, 3);
    const std::string got = example.answer(request, 3);
    if (got != expected) std::fprintf(stderr, "request %.60s\nexpected %.200s\ngot %.200s\n", request.c_str(), expected.c_str(), got.c_str());
    CHECK(got == expected);
  }
  std::printf("plaintext_server: the same bytes as those of upshift\n");
}

void files(const std::string& examples) {
  const auto root = std::filesystem::temp_directory_path() / ("upshift-files-" + std::to_string(getpid()));
  std::filesystem::create_directories(root / "in");
  std::string big;
  for (int i = 0; i < 300'000; ++i) big += static_cast<char>(i * 31 + i / 7);
  std::ofstream(root / "big") << big;
  std::ofstream(root / "in" / "a b") << "small\n";
  std::filesystem::create_symlink("/etc/passwd", root / "out");
  {
    const server under_test({examples + "/file_server", "--root", root.string(), "--listen", "127.0.0.1:0"});
    const auto get = [&](const std::string& path) {
      return under_test.answer("GET " + path + " HTTP/1.1\r\nConnection: close\r\n\r\n", 1);
    };
    const std::string all = get("/big");
    CHECK(all.starts_with("HTTP/1.1 200 OK\r\n") && all.ends_with("\r\n\r\n" + big));
    CHECK(get("/in/a%20b?x=1").ends_with("\r\n\r\nsmall\n"));
    for (const char* missing : {"/none", "/", "/in", "/../etc/passwd", "/%2e%2e/etc/passwd", "/out", "/%", "/%00"})
      CHECK(get(missing).starts_with("HTTP/1.1 404 "));
    const std::string two = under_test.answer("HEAD /big HTTP/1.1\r\n\r\nGET /in/a%20b HTTP/1.0\r\n\r\n", 2);
    CHECK(two.find("Content-Length: 300000\r\n") != std::string::npos && two.ends_with("\r\n\r\nsmall\n"));
  }
  std::filesystem::remove_all(root);
  std::printf("file_server: the bytes of the files\n");
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 2);
  signal(SIGPIPE, SIG_IGN);
  files(argv[1]);
  if (argc > 2) {
    matrices(argv[1], argv[2]);
    plaintext(argv[1], argv[2]);
  } else {
    std::printf("skipped: the command upshift is not built, so only the file server is tested\n");
  }
  std::printf("test result: ok. %d passed; 0 failed\n", argc > 2 ? 3 : 1);
}
