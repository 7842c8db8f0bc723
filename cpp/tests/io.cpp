// Sockets, files, channels and mutexes; buffers in flight; random cancellation.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "runtime.hpp"

namespace {

std::string scratch(const char* name) {
  return (std::filesystem::temp_directory_path() / ("upshift-cpp-" + std::to_string(getpid()) + "-" + name)).string();
}

u::task<> echo(u::stream peer) {
  while (true) {
    auto data = co_await peer.recv();
    if (data.empty()) co_return;
    co_await peer.write_all(std::move(data));
  }
}

/// Reads `count` bytes from the peer.
u::task<std::string> take(u::stream& from, std::size_t count) {
  std::string all;
  while (all.size() < count) {
    auto data = co_await from.recv();
    CHECK(!data.empty());
    all.append(data.view());
  }
  co_return all;
}

}  // namespace

TEST(tcp_carries_bytes_both_ways) {
  on_two_vcpus([]() -> u::task<> {
    auto listening = u::listener::tcp("127.0.0.1:0");
    auto server = u::spawn([&]() -> u::task<> { co_await echo(co_await listening.accept()); });
    auto peer = co_await u::connect_tcp(listening.local_address()->to_string());
    co_await peer.write_all(u::buffer("ping"));
    CHECK(co_await take(peer, 4) == "ping");
    co_await peer.write_all(std::string_view("pong"));
    std::byte room[16];
    CHECK(co_await peer.read(std::span<std::byte>(room)) == 4);
    std::string big(1 << 20, 'b');
    auto sending = u::spawn([&]() -> u::task<> {
      auto returned = co_await peer.write_all(u::buffer(std::string(big)));
      CHECK(returned.size() == big.size());
    });
    CHECK(co_await take(peer, big.size()) == big);
    co_await sending;
    CHECK(peer.shutdown());
    CHECK((co_await peer.recv()).empty());
    co_await server;
  }());
}

TEST(read_exact_reads_the_requested_number_of_bytes) {
  on_two_vcpus([]() -> u::task<> {
    auto [one, other] = connected();
    auto sending = u::spawn([](u::stream from) -> u::task<> {
      for (const char* piece : {"ab", "cdef", "ghijkl"}) {
        co_await from.write_all(u::buffer(piece));
        co_await u::sleep(2ms);
      }
    }(std::move(other)));
    std::byte room[8];
    CHECK(co_await one.read_exact(room) == 8 && std::memcmp(room, "abcdefgh", 8) == 0);
    CHECK(co_await one.read_exact(std::span<std::byte>()) == 0);
    CHECK(co_await one.read_exact(room) == 4 && std::memcmp(room, "ijkl", 4) == 0);
    CHECK(*co_await one.read_exact(room, u::as_result) == 0);
    co_await sending;
  }());
}

/// Uses every kind of empty buffer.
static u::task<> empty_buffers(std::string path) {
  auto [one, other] = connected();
  // The buffers are created empty, moved from, or reset.
  co_await one.write_all(u::bytes());
  CHECK(co_await u::timeout(30s, one.write_all(u::bytes())));
  co_await other.write_all(std::string_view("hello"));
  auto data = co_await one.recv();
  co_await one.write_all(std::move(data));
  // NOLINTNEXTLINE(bugprone-use-after-move): a moved-from buffer is empty.
  co_await one.write_all(std::move(data));
  CHECK(co_await take(other, 5) == "hello");
  co_await other.write_all(std::string_view("again"));
  data = co_await one.recv();
  data.reset();
  co_await one.write_all(std::move(data));
  upshift_bytes none{};
  upshift_bytes_free(&none);
  auto returned = co_await one.write_all(u::buffer());
  CHECK(returned.empty());
  co_await one.write_all(std::string_view());
  co_await one.write_all(u::buffer(""));
  // The reads have no room.
  CHECK(co_await one.read(std::span<std::byte>()) == 0);
  CHECK(co_await one.read_exact(std::span<std::byte>()) == 0);
  auto read = co_await one.read(u::buffer());
  CHECK(read.count == 0);
  // The connection still works.
  co_await other.write_all(std::string_view("bye"));
  CHECK(co_await take(one, 3) == "bye");

  auto socket = u::udp_socket::bind("127.0.0.1:0");
  const auto to = *socket.local_address();
  CHECK(co_await socket.send_to({}, to) == 0);
  std::byte room[8];
  CHECK((co_await socket.recv_from(room)).count == 0);
  CHECK(co_await socket.send_to(std::as_bytes(std::span("lost")), to) == 5);
  CHECK((co_await socket.recv_from({})).count == 0);

  auto file = co_await u::file::open(path, O_RDWR | O_CREAT | O_TRUNC);
  CHECK((co_await file.write_at(u::buffer(), 3)).count == 0);
  co_await file.write_all_at(u::buffer(), 3);
  CHECK((co_await file.read_at(u::buffer(), 0)).count == 0);
  CHECK(co_await file.size() == 0);
}

TEST(operations_on_empty_buffers_end_at_once) {
  for (const std::uint32_t driver : {1, 2}) {
    u::config settings;
    settings.vcpus = 1;
    settings.driver = driver;
    auto runtime = u::runtime::make(settings);
    if (!runtime) continue;
    const std::string path = scratch("empty");
    runtime->block_on(empty_buffers(path));
    std::filesystem::remove(path);
  }
}

TEST(addresses_are_reported_and_parsed) {
  on_one_vcpu([]() -> u::task<> {
    auto listening = u::listener::tcp("127.0.0.1:0");
    const auto bound = *listening.local_address();
    CHECK(bound.port != 0 && bound.version == 4 && bound.to_string() == "127.0.0.1:" + std::to_string(bound.port));
    auto peer = co_await u::connect_tcp(bound.to_string());
    auto accepted = co_await listening.accept();
    CHECK(*peer.peer_address() == bound && *accepted.local_address() == bound);
    CHECK(*accepted.peer_address() == *peer.local_address());
    auto [one, other] = connected();
    CHECK(one.peer_address().error() == std::errc::address_family_not_supported);
    for (const char* text : {"127.0.0.1:80", "[::1]:65535", "[2001:db8::7]:1"}) CHECK(u::address::parse(text)->to_string() == text);
    for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:8x", "::1:80", "[::1]", "[::1:80", "localhost:80"}) {
      CHECK(u::address::parse(text).error() == std::errc::invalid_argument);
    }
  }());
}

TEST(a_unix_connection_is_split_into_two_halves) {
  on_two_vcpus([]() -> u::task<> {
    const std::string path = scratch("socket");
    auto listening = u::listener::unix_path(path);
    auto server = u::spawn([&]() -> u::task<> { co_await echo(co_await listening.accept()); });
    auto [input, output] = (co_await u::connect_unix(path)).split();
    auto sending = u::spawn([](u::writer output) -> u::task<> {
      for (int i = 0; i < 100; ++i) co_await output.write_all(u::buffer("0123456789"));
    }(std::move(output)));
    std::size_t got = 0;
    while (true) {
      auto [count, returned] = co_await input.read(u::buffer(64));
      if (count == 0) break;
      got += count;
    }
    CHECK(got == 1000);
    co_await sending;
    co_await server;
    std::filesystem::remove(path);
  }());
}

TEST(a_path_that_is_empty_or_too_long_is_an_error) {
  for (const std::string& path : {std::string(), std::string(108, 'x')}) CHECK(u::listener::unix_path(path, u::as_result).error() == std::errc::invalid_argument);
  on_one_vcpu([]() -> u::task<> {
    CHECK((co_await u::connect_unix("", u::as_result)).error() == std::errc::invalid_argument);
    CHECK((co_await u::connect_unix(std::string(108, 'x'), u::as_result)).error() == std::errc::invalid_argument);
    bool caught = false;
    try {
      (void)u::listener::unix_path("");
    } catch (const std::system_error& error) {
      caught = error.code() == std::errc::invalid_argument;
    }
    CHECK(caught);
  }());
}

// C would end the name at the NUL.
TEST(a_name_that_contains_a_nul_is_an_error) {
  using namespace std::string_literals;
  const auto is_invalid = [](const auto& outcome) { return outcome.error() == std::errc::invalid_argument; };
  const std::string path = scratch("nul");
  const std::string path_with_nul = path + "\0.txt"s;
  CHECK(is_invalid(u::address::parse("127.0.0.1\0:80"s)));
  CHECK(is_invalid(u::listener::tcp("127.0.0.1:0\0"s, u::as_result)));
  CHECK(is_invalid(u::listener::unix_path(path_with_nul, u::as_result)));
  CHECK(is_invalid(u::udp_socket::bind("127.0.0.1:0\0"s, u::as_result)));
  on_one_vcpu([](auto is_invalid, std::string path_with_nul) -> u::task<> {
    CHECK(is_invalid(co_await u::file::open(path_with_nul, O_RDWR | O_CREAT, u::as_result)));
    CHECK(is_invalid(co_await u::connect_unix(path_with_nul, u::as_result)));
    CHECK(is_invalid(co_await u::connect_tcp("127.0.0.1:1\0"s, u::as_result)));
    const auto directory = co_await u::file::open(".", O_RDONLY | O_DIRECTORY);
    CHECK(is_invalid(co_await directory.open_beneath("x\0y"s, O_RDONLY, u::as_result)));
  }(is_invalid, path_with_nul));
  CHECK(!std::filesystem::exists(path));
  CHECK(upshift_listen_unix(nullptr, nullptr) == -EINVAL);
}

TEST(a_path_need_not_be_text) {
  on_one_vcpu([]() -> u::task<> {
    const std::string path = scratch("bytes-\xff");
    auto file = co_await u::file::open(path, O_RDWR | O_CREAT);
    CHECK(std::filesystem::remove(path));
    auto listening = u::listener::unix_path(path);
    auto peer = co_await u::connect_unix(path);
    CHECK(std::filesystem::remove(path));
  }());
}

TEST(a_descriptor_that_is_not_a_stream_is_refused) {
  const auto adoption_error = [](int fd) { return u::stream::from_fd(fd, u::as_result).error().value(); };
  // The descriptor is closed on failure, too.
  const auto refused = [&](int fd) {
    CHECK(fd >= 0);
    const int code = adoption_error(fd);
    CHECK(fcntl(fd, F_GETFD) == -1);
    return code;
  };
  CHECK(adoption_error(-1) == EBADF);
  CHECK(adoption_error(1 << 20) == EBADF);
  CHECK(refused(open("/dev/null", O_RDWR)) == ENOTSOCK);
  CHECK(refused(socket(AF_INET, SOCK_DGRAM, 0)) == EPROTOTYPE);
  CHECK(refused(socket(AF_UNIX, SOCK_DGRAM, 0)) == EPROTOTYPE);
  CHECK(refused(socket(AF_UNIX, SOCK_SEQPACKET, 0)) == EPROTOTYPE);
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(listen(listening, 1) == 0);
  CHECK(refused(listening) == EINVAL);
  // An unconnected socket is detected at its first use.
  on_one_vcpu([](u::stream unconnected) -> u::task<> {
    CHECK((co_await unconnected.recv(u::as_result)).error() == std::errc::not_connected);
  }(u::stream::from_fd(socket(AF_INET, SOCK_STREAM, 0))));
}

TEST(a_descriptor_that_is_not_open_is_refused_as_a_file) {
  CHECK(upshift_file_from_fd(-1) == nullptr);
  CHECK(upshift_file_from_fd(1 << 20) == nullptr);
  on_one_vcpu([]() -> u::task<> {
    u::file directory(upshift_file_from_fd(open("/", O_RDONLY)));
    auto listed = co_await directory.read_at(u::buffer(16), 0, u::as_result);
    CHECK(listed.count.error() == std::errc::is_a_directory);
  }());
}

TEST(datagrams_arrive_with_their_sender) {
  on_one_vcpu([]() -> u::task<> {
    auto one = u::udp_socket::bind("127.0.0.1:0");
    auto other = u::udp_socket::bind("127.0.0.1:0");
    const auto to = *other.local_address();
    const std::string text = "datagram";
    CHECK(co_await one.send_to(std::as_bytes(std::span(text)), to) == text.size());
    std::byte room[100];
    const auto got = co_await other.recv_from(room);
    CHECK(got.count == text.size() && std::memcmp(room, text.data(), text.size()) == 0);
    CHECK(got.from.port == one.local_address()->port && got.from.version == 4);
    CHECK(!co_await u::timeout(1ms, other.recv_from(room, u::as_result)));
  }());
}

TEST(files_are_read_and_written_by_position) {
  on_one_vcpu([]() -> u::task<> {
    const std::string path = scratch("file");
    auto file = co_await u::file::open(path, O_RDWR | O_CREAT | O_TRUNC);
    co_await file.write_all_at(u::buffer("hello, file"), 0);
    co_await file.sync();
    CHECK(co_await file.size() == 11);
    auto [count, data] = co_await file.read_at(u::buffer(100), 7);
    CHECK(count == 4 && data.view() == "file");
    co_await file.set_size(5);
    CHECK((co_await file.read_at(std::move(data), 0)).buf.view() == "hello");
    auto end = co_await file.read_at(u::buffer(8), 100, u::as_result);
    CHECK(*end.count == 0);
    const auto root = co_await u::file::open(std::filesystem::temp_directory_path().string(), O_RDONLY | O_DIRECTORY);
    CHECK((co_await root.open_beneath("../etc/passwd", O_RDONLY, u::as_result)).error().value() == EXDEV);
    CHECK((co_await root.size(u::as_result)).error() == std::errc::is_a_directory);
    std::filesystem::remove(path);
  }());
}

TEST(the_system_calls_of_the_papers_have_two_forms) {
  on_one_vcpu([]() -> u::task<> {
    const std::string path = scratch("sys");
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    auto written = u::write(fd, u::buffer("sync"));
    CHECK(*written.count == 4);
    auto asynchronous = co_await u::write(fd, u::buffer("+async"), u::get_cid());
    CHECK(*asynchronous.count == 6);
    lseek(fd, 0, SEEK_SET);
    auto head = u::read(fd, u::buffer(4));
    CHECK(head.buf.view() == "sync");
    auto call = u::read(fd, u::buffer(100), u::get_cid());
    auto tail = co_await call;
    CHECK(*tail.count == 6 && tail.buf.view() == "+async");
    CHECK((co_await u::read(-1, u::buffer(1), u::get_cid())).count.error().value() == EBADF);
    CHECK(u::read(-1, u::buffer(1)).count.error().value() == EBADF);
    // The call wakes the coroutine of the given id, whether or not the coroutine awaits the call.
    int fds[2];
    CHECK(pipe(fds) == 0);
    {
      bool stop = false;
      auto waiting = u::spawn([&]() -> u::task<> {
        while (!stop) co_await u::park();
      });
      co_await u::yield_now();
      auto reading = u::read(fds[0], tracked::make(10), waiting.id());
      CHECK(::write(fds[1], "x", 1) == 1);
      stop = true;
      co_await waiting;
      CHECK(*(co_await reading).count == 1);
      // This call is dropped in flight.
      auto dropped = u::read(fds[0], tracked::make(10), u::get_cid());
    }
    while (tracked::alive != 0) co_await u::sleep(1ms);
    close(fds[0]);
    close(fds[1]);
    close(fd);
    std::filesystem::remove(path);
  }());
}

TEST(errors_are_thrown_or_returned_as_the_call_chooses) {
  on_one_vcpu([]() -> u::task<> {
    int code = 0;
    try {
      (void)co_await u::file::open("/nonexistent/file");
    } catch (const std::system_error& error) {
      code = error.code().value();
    }
    CHECK(code == ENOENT);
    auto tried = co_await u::file::open("/nonexistent/file", O_RDONLY, u::as_result);
    CHECK(!tried && tried.error() == std::errc::no_such_file_or_directory);
    auto refused = co_await u::connect_tcp("127.0.0.1:1", u::as_result);
    CHECK(refused.error() == std::errc::connection_refused);
    CHECK(!u::listener::tcp("256.0.0.1:x", u::as_result));
    auto bad = u::stream::from_fd(-1, u::as_result);
    CHECK(bad.error().value() == EBADF);
    // The buffer comes back with an error, too.
    auto [one, other] = connected();
    { auto gone = std::move(other); }
    auto failed = co_await one.write_all(u::buffer("nobody"), u::as_result);
    CHECK(failed.done.error() == std::errc::broken_pipe && failed.buf.view() == "nobody");
  }());
}

TEST(a_destroyed_task_with_io_in_flight_keeps_its_buffer_until_the_kernel_is_done) {
  on_one_vcpu([]() -> u::task<> {
    for (int i = 0; i < 100; ++i) {
      auto [one, other] = connected();
      auto reading = u::spawn([](u::stream& from) -> u::task<> {
        (void)co_await from.read(tracked::make(4096));
        CHECK(false);
      }(one));
      while (tracked::alive == 0) co_await u::yield_now();
      co_await u::sleep(100us);
      CHECK(tracked::alive == 1);
      reading.cancel();
      // Bytes that arrive meanwhile go to memory that still exists.
      co_await other.write_all(std::string_view("too late"));
      CHECK(!co_await reading.join(u::as_result));
      for (int n = 0; tracked::alive != 0; ++n) {
        CHECK(n < 1000);
        co_await u::sleep(1ms);
      }
    }
  }());
}

TEST(a_runtime_that_ends_with_io_in_flight_frees_all_buffers) {
  {
    u::runtime runtime;
    runtime.block_on([]() -> u::task<> {
      for (int i = 0; i < 64; ++i) {
        u::spawn([]() -> u::task<> {
          auto [one, other] = connected();
          (void)co_await one.read(tracked::make(1 << 16));
        }).detach();
      }
      for (int n = 0; tracked::alive != 64; ++n) {
        CHECK(n < 10000);
        co_await u::sleep(1ms);
      }
    }());
  }
  CHECK(tracked::alive == 0);
}

TEST(channels_deliver_messages_and_end) {
  on_two_vcpus([]() -> u::task<> {
    auto [to, from] = u::channel<std::unique_ptr<int>>(2);
    auto sending = u::spawn([](u::sender<std::unique_ptr<int>> to) -> u::task<> {
      for (int n = 0; n < 1000; ++n) co_await to.send(std::make_unique<int>(n));
    }(std::move(to)));
    int expected = 0;
    while (auto message = co_await from.recv()) CHECK(**message == expected++);
    CHECK(expected == 1000);
    co_await sending;
    // Unreceived messages are destroyed, for every type of message.
    {
      auto [a, b] = u::channel<counted>(4);
      CHECK(a.try_send(counted()) && a.try_send(counted()));
      auto copy = a;
      CHECK(copy.try_send(counted()));
      CHECK(counted::alive == 3);
      CHECK(b.try_recv());
      CHECK(counted::alive == 2);
    }
    CHECK(counted::alive == 0);
    auto [lost, gone] = u::channel<std::string>(1);
    { auto end = std::move(gone); }
    CHECK((co_await lost.send("nobody", u::as_result)).error() == std::errc::broken_pipe);
    auto [plain, numbers] = u::channel<int>(1);
    CHECK(plain.try_send(7) && !plain.try_send(8));
    CHECK(*co_await numbers.recv() == 7);
  }());
}

TEST(a_mutex_excludes_other_coroutines_and_lends_a_level) {
  on_one_vcpu([]() -> u::task<> {
    u::mutex mutex;
    int lent_level = -1;
    bool is_waiting = false;
    auto holder = u::spawn(
        [&]() -> u::task<> {
          auto guard = co_await mutex.lock();
          while (!is_waiting) co_await u::sleep(1ms);
          co_await u::sleep(1ms);
          lent_level = u::current_level();
        },
        u::level{50});
    co_await u::sleep(2ms);
    CHECK(!mutex.try_lock());
    auto urgent = u::spawn(
        [&]() -> u::task<> {
          is_waiting = true;
          auto guard = co_await mutex.lock();
        },
        u::level{3});
    co_await urgent;
    CHECK(lent_level == 3);
    co_await holder;
    CHECK(mutex.try_lock());
  }());
}

TEST(a_host_name_without_an_address_is_an_error_of_its_own_category) {
  on_one_vcpu([]() -> u::task<> {
    auto tried = co_await u::connect_tcp("no such host:80", u::as_result);
    CHECK(!tried && tried.error().category() == u::name_category());
    CHECK(tried.error().message().find("host name") != std::string::npos);
    try {
      (void)co_await u::connect_tcp("no such host:80");
      CHECK(false);
    } catch (const std::system_error& error) {
      CHECK(error.code() == tried.error());
    }
    CHECK(u::listener::tcp("no such host:80", u::as_result).error() == tried.error());
  }());
}

TEST(a_timeout_tells_the_end_of_a_channel_from_the_end_of_the_time) {
  on_one_vcpu([]() -> u::task<> {
    auto [send, receive] = u::channel<int>(4);
    auto timed_out_receive = co_await u::timeout(1ms, receive.recv());
    CHECK(!timed_out_receive && timed_out_receive.timed_out());
    co_await send.send(5);
    auto got = co_await u::timeout(30s, receive.recv());
    CHECK(got == 5 && !got.timed_out());
    send.close();
    auto ended = co_await u::timeout(30s, receive.recv());
    CHECK(!ended && !ended.timed_out());
  }());
}

TEST(a_timeout_cancels_its_operation) {
  on_one_vcpu([]() -> u::task<> {
    auto [one, other] = connected();
    CHECK(!co_await u::timeout(1ms, one.recv()));
    co_await other.write_all(std::string_view("now"));
    auto data = co_await u::timeout(10s, one.recv());
    CHECK(data && data->view() == "now");
    CHECK(!co_await u::timeout(1ms, u::sleep(1h)));
    CHECK(co_await u::timeout(1h, u::sleep(1ms)));
    u::mutex mutex;
    auto guard = co_await mutex.lock();
    CHECK(!co_await u::timeout(1ms, mutex.lock()));
    guard.unlock();
    CHECK(co_await u::timeout(1s, mutex.lock()));
  }());
}

namespace {

/// The objects that the coroutines of the random test share.
struct playground {
  u::mutex mutex;
  std::pair<u::sender<std::unique_ptr<counted>>, u::receiver<std::unique_ptr<counted>>> channel = u::channel<std::unique_ptr<counted>>(1);
  u::listener listening = u::listener::tcp("127.0.0.1:0");
};

/// Detached coroutines outlive the main task, so each coroutine shares the ownership of the
/// playground.
using shared_playground = std::shared_ptr<playground>;

u::task<> wait_somehow(shared_playground shared, unsigned kind, unsigned delay) {
  counted frame;
  for (unsigned i = 0; i < delay % 3; ++i) co_await u::yield_now();
  switch (kind) {
    case 0: {
      co_await u::sleep(std::chrono::microseconds(delay));
      break;
    }
    case 1: {
      auto [one, other] = connected();
      (void)co_await one.recv();
      break;
    }
    case 2: {
      auto [one, other] = connected();
      (void)co_await one.read(tracked::make(1024));
      break;
    }
    case 3: {
      auto guard = co_await shared->mutex.lock();
      co_await u::sleep(std::chrono::microseconds(delay));
      break;
    }
    case 4: {
      (void)co_await shared->channel.first.send(std::make_unique<counted>(), u::as_result);
      break;
    }
    case 5: {
      (void)co_await shared->listening.accept(u::as_result);
      break;
    }
    case 6: {
      // More bytes than the socket accepts: the kernel keeps the buffer.
      auto [one, other] = connected();
      auto big = tracked::make(1 << 20);
      big.resize(1 << 20);
      std::memset(big.data(), 1, big.size());
      (void)co_await one.write_all(std::move(big), u::as_result);
      break;
    }
    case 7: {
      co_await wait_somehow(shared, delay % 7, delay / 2);
      break;
    }
    case 8: {
      auto child = u::spawn(wait_somehow(shared, delay % 7, delay / 2));
      auto canceller = u::spawn([](u::cid id) -> u::task<> {
        co_await u::sleep(200us);
        u::cancel(id);
      }(child.id()));
      (void)co_await child.join(u::as_result);
      break;
    }
    case 9: {
      (void)co_await u::blocking([delay] { usleep(delay % 100); }).join(u::as_result);
      break;
    }
    case 10: {
      auto [one, other] = connected();
      (void)co_await u::timeout(std::chrono::microseconds(delay), one.read(tracked::make(64), u::as_result));
      break;
    }
    case 11: {
      // Nested trees that end earlier, later, or together with the outer tree.
      auto first = co_await u::when_any(wait_somehow(shared, delay % 8, delay / 2), u::sleep(std::chrono::microseconds(delay)));
      (void)first;
      break;
    }
    case 12: {
      (void)co_await u::timeout(std::chrono::microseconds(delay), wait_somehow(shared, delay % 12, delay / 2));
      break;
    }
    case 13: {
      auto [one, other] = connected();
      (void)co_await u::when_all(one.recv(u::as_result), other.write_all(std::string_view("x"), u::as_result), wait_somehow(shared, delay % 7, delay / 2));
      break;
    }
    default: {
      int fds[2];
      CHECK(pipe2(fds, O_CLOEXEC) == 0);
      {
        auto call = u::read(fds[0], tracked::make(64), u::get_cid());
        (void)co_await u::timeout(std::chrono::microseconds(delay), u::sleep(1h));
      }
      close(fds[0]);
      close(fds[1]);
    }
  }
}

}  // namespace

TEST(a_thousand_random_cancellations) {
  const char* seed_text = std::getenv("UPSHIFT_SEED");
  const unsigned seed = seed_text != nullptr ? static_cast<unsigned>(std::atoi(seed_text)) : std::random_device()();
  std::printf("(UPSHIFT_SEED=%u) ", seed);
  std::fflush(stdout);
  {
    u::config settings;
    settings.vcpus = 2;
    u::runtime runtime(settings);
    runtime.block_on([](unsigned seed) -> u::task<> {
      std::mt19937 random(seed);
      const auto shared = std::make_shared<playground>();
      std::vector<u::join_handle<>> live;
      for (int i = 0; i < 1000; ++i) {
        live.push_back(u::spawn(wait_somehow(shared, random() % 15, random() % 2000), u::level{static_cast<int>(random() % 64)}));
        if (random() % 4 == 0) co_await u::sleep(std::chrono::microseconds(random() % 200));
        if (random() % 8 == 0) co_await u::yield_now();
        const auto index = random() % live.size();
        live[index].cancel();
        if (random() % 2 == 0) {
          (void)co_await live[index].join(u::as_result);
          live[index] = std::move(live.back());
          live.pop_back();
        }
      }
      for (auto& handle : live) handle.cancel();
      for (auto& handle : live) (void)co_await handle.join(u::as_result);
    }(seed));
  }
  // Detached grandchildren end with the runtime, and so do the kernel's buffers.
  CHECK(counted::alive == 0);
  CHECK(tracked::alive == 0);
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
