// The file benchmarks on Upshift's C++ coroutines, with the rows of kit/src/files/mod.rs. The
// bulk writes have level 40, and all other tasks have level 0.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <string>
#include <upshift/upshift.hpp>
#include <vector>

#include "server.hpp"

using namespace upshift;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr std::size_t block = 4096, piece_size = 1 << 20, record = 512, small_files = 10'000, small_length = 4000, bulk = 8;
constexpr std::uint64_t big_size = 512ull << 20, out_size = 64ull << 20;

struct plan {
  std::string row, dir = ".";
  double seconds = 1;
  std::size_t tasks = 32;
  bool direct = false, once = false;
};

[[noreturn]] void fail(const char* message) {
  std::fprintf(stderr, "%s\n", message);
  std::exit(1);
}

void check(bool condition, const char* message) {
  if (!condition) fail(message);
}

std::uint64_t word(std::uint64_t number, std::uint64_t index) {
  std::uint64_t z = (number << 40 | index) + 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

/// Returns the number of the `index`-th block to read.
std::uint64_t shuffled(std::uint64_t index) {
  constexpr std::uint64_t blocks = big_size / block;
  std::uint64_t x = index % blocks;
  x ^= x >> 9;
  x = x * 0x9e3779b9 % blocks;
  x ^= x >> 8;
  x = x * 0x85ebca6b % blocks;
  return x ^ x >> 9;
}

std::uint64_t first_word(const std::byte* bytes) {
  std::uint64_t result;
  std::memcpy(&result, bytes, 8);
  return result;
}

std::uint64_t sum(const buffer& bytes) {
  std::uint64_t result = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 8) result += first_word(bytes.data() + i);
  return result;
}

void mark(buffer& bytes, std::uint64_t value) { std::memcpy(bytes.data(), &value, 8); }

buffer aligned(std::size_t length) {
  void* data = std::aligned_alloc(4096, length < 4096 ? 4096 : length);
  std::memset(data, 0, length);
  return buffer::with_release(data, length, length, [](void*, std::uint8_t* memory, std::size_t) { std::free(memory); }, nullptr);
}

buffer pattern(std::size_t length) {
  buffer result = aligned(length);
  for (std::size_t i = 0; i < length / 8; ++i) {
    const std::uint64_t value = word(small_files, i);
    std::memcpy(result.data() + 8 * i, &value, 8);
  }
  return result;
}

/// The shared state of a row's tasks.
struct shared {
  const plan& options;
  clock_type::time_point end;
  std::uint64_t next = 0;
  bool is_stopped = false;
  std::vector<std::uint32_t> times{};

  bool is_over(clock_type::time_point now) const { return is_stopped || now >= end; }

  /// Returns the next of `pieces` pieces, or `pieces` if none is left.
  std::uint64_t take(std::uint64_t pieces) {
    if (options.once && next >= pieces) return pieces;
    return next++ % pieces;
  }

  void count(clock_type::time_point start_time) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(clock_type::now() - start_time).count();
    times.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(ns, UINT32_MAX)));
  }
};

std::string path_of(const plan& options, std::uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "/small/%05" PRIu64, number);
  return options.dir + name;
}

task<std::size_t> read_whole(std::string path, buffer& bytes) {
  file opened = co_await file::open(std::move(path));
  transfer read = co_await opened.read_at(std::move(bytes), 0);
  bytes = std::move(read.buf);
  co_return read.count;
}

task<> run_task(shared& state, const file& target, std::size_t task_number) {
  const std::string& row = state.options.row;
  buffer bytes = row == "append" ? pattern(record) : row == "random" ? aligned(block) : row == "open" ? aligned(2 * block) : pattern(piece_size);
  while (true) {
    const auto start_time = clock_type::now();
    if (state.is_over(start_time)) break;
    if (row == "open") {
      const std::uint64_t number = state.take(small_files);
      if (number == small_files) break;
      const std::size_t length = co_await read_whole(path_of(state.options, number), bytes);
      check(length == small_length && first_word(bytes.data()) == word(number, 0), "other bytes than in the file");
      bytes.resize(2 * block);
    } else if (row == "random" || row == "read") {
      const std::size_t size = row == "random" ? block : piece_size;
      std::uint64_t piece = state.take(big_size / size);
      if (piece == big_size / size) break;
      if (row == "random") piece = shuffled(piece);
      transfer read = co_await target.read_at(std::move(bytes), piece * size);
      bytes = std::move(read.buf);
      check(read.count == size && first_word(bytes.data()) == word(small_files, piece * size / 8), "other bytes than in the file");
    } else if (row == "append") {
      mark(bytes, task_number);
      bytes = co_await target.write_all_at(std::move(bytes), 0);
      co_await target.sync(throwing, true);
    } else {
      const std::uint64_t piece = state.take(out_size / piece_size);
      if (piece == out_size / piece_size) break;
      mark(bytes, word(small_files, piece));
      bytes = co_await target.write_all_at(std::move(bytes), piece * piece_size);
    }
    state.count(start_time);
  }
}

task<file> open_in(const plan& options, std::string name, int flags) { co_return co_await file::open(options.dir + "/" + name, flags); }

task<> run_all(shared& state) {
  const plan& options = state.options;
  file target;
  if (options.row == "write") {
    target = co_await open_in(options, "out", O_WRONLY | O_CREAT);
  } else if (options.row == "append") {
    target = co_await open_in(options, "log", O_WRONLY | O_CREAT | O_APPEND);
  } else if (options.row != "open") {
    target = co_await open_in(options, "big", O_RDONLY | (options.direct ? O_DIRECT : 0));
    if (options.row == "random") posix_fadvise(target.fd(), 0, 0, POSIX_FADV_RANDOM);
  }
  std::vector<join_handle<void>> tasks;
  for (std::size_t number = 0; number < options.tasks; ++number) tasks.push_back(spawn(run_task(state, target, number), level{0}));
  for (auto& handle : tasks) co_await handle;
}

task<> serve(stream peer, const file& source) {
  std::string input;
  buffer answer(block);
  while (true) {
    auto data = co_await peer.recv(as_result);
    if (!data || data->empty()) co_return;
    input.append(data->view());
    while (input.size() >= 8) {
      std::uint64_t number;
      std::memcpy(&number, input.data(), 8);
      input.erase(0, 8);
      transfer read = co_await source.read_at(std::move(answer), number * block);
      answer = co_await peer.write_all(std::move(read.buf));
    }
  }
}

task<> mixed(const plan& options, shared& state, clock_type::time_point& start, rusage& before) {
  listener acceptor = listener::tcp("127.0.0.1:0");
  server::announce(acceptor.fd());
  stream peer = co_await acceptor.accept();
  server::no_delay(peer.fd());
  const file source = co_await open_in(options, "big", O_RDONLY);
  start = clock_type::now();
  getrusage(RUSAGE_SELF, &before);
  std::vector<std::unique_ptr<shared>> writers;
  std::vector<file> files;
  std::vector<join_handle<void>> tasks;
  files.reserve(bulk);
  for (std::size_t number = 0; number < bulk; ++number) {
    files.push_back(co_await open_in(options, "bulk-" + std::to_string(number), O_WRONLY | O_CREAT));
    writers.push_back(std::make_unique<shared>(shared{options, start + std::chrono::hours(1)}));
    tasks.push_back(spawn(run_task(*writers.back(), files.back(), number), level{40}));
  }
  co_await serve(std::move(peer), source);
  for (auto& writer : writers) writer->is_stopped = true;
  for (auto& handle : tasks) co_await handle;
  for (auto& writer : writers) state.times.insert(state.times.end(), writer->times.begin(), writer->times.end());
}

task<std::uint64_t> check_all(const plan& options) {
  std::uint64_t total = 0;
  buffer bytes = aligned(2 * block);
  for (std::uint64_t number = 0; number < small_files; number += 100) {
    check(co_await read_whole(path_of(options, number), bytes) == small_length, "a small file was not read to its end");
    total += sum(bytes);
    bytes.resize(2 * block);
  }
  const file source = co_await open_in(options, "big", O_RDONLY);
  bytes = aligned(block);
  for (int number = 511; number >= 0; --number) {
    transfer read = co_await source.read_at(std::move(bytes), static_cast<std::uint64_t>(number) * block);
    bytes = std::move(read.buf);
    total += sum(bytes);
  }
  bytes = aligned(piece_size);
  for (std::uint64_t number = 0; number < 8; ++number) {
    transfer read = co_await source.read_at(std::move(bytes), number * piece_size);
    bytes = std::move(read.buf);
    total += sum(bytes);
  }
  const file out = co_await open_in(options, "out", O_WRONLY | O_CREAT);
  for (std::uint64_t number = 0; number < 8; ++number) bytes = co_await out.write_all_at(std::move(bytes), number * piece_size);
  co_await out.sync(throwing, true);
  const file log = co_await open_in(options, "log", O_WRONLY | O_CREAT | O_APPEND);
  bytes = pattern(record);
  for (int number = 0; number < 20; ++number) {
    bytes = co_await log.write_all_at(std::move(bytes), 0);
    co_await log.sync(throwing, true);
  }
  co_return total;
}

plan parse(int argc, char** argv) {
  check(argc > 1, "usage: ROW --dir DIR [--seconds S] [--tasks N] [--direct] [--once]");
  plan result;
  result.row = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--direct") {
      result.direct = true;
    } else if (name == "--once") {
      result.once = true;
    } else if (i + 1 == argc) {
      fail("the last option lacks a value");
    } else if (name == "--dir") {
      result.dir = argv[++i];
    } else if (name == "--seconds") {
      result.seconds = std::atof(argv[++i]);
    } else if (name == "--tasks") {
      result.tasks = static_cast<std::size_t>(std::atoi(argv[++i]));
    }
  }
  return result;
}

double seconds_of(timeval time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; }

}  // namespace

int main(int argc, char** argv) {
  const plan options = parse(argc, argv);
  config settings;
  settings.vcpus = 1;
  runtime executor(settings);
  const auto deadline_in = [](double seconds) {
    return clock_type::now() + std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds));
  };
  std::uint64_t total = 0;
  auto start = clock_type::now();
  rusage before{}, after{};
  const bool is_check = options.row == "check", is_mixed = options.row == "mixed";
  if (!options.once && !is_check && !is_mixed) {
    shared state{options, deadline_in(0.1)};
    executor.block_on(run_all(state));
  }
  shared state{options, deadline_in(options.seconds)};
  start = clock_type::now();
  getrusage(RUSAGE_SELF, &before);
  if (is_check) {
    total = executor.block_on(check_all(options));
  } else if (is_mixed) {
    executor.block_on(mixed(options, state, start, before));
  } else {
    executor.block_on(run_all(state));
  }
  const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
  getrusage(RUSAGE_SELF, &after);
  std::sort(state.times.begin(), state.times.end());
  const auto percentile_us = [&](double quantile) {
    if (state.times.empty()) return 0.0;
    const auto index = static_cast<std::size_t>(static_cast<double>(state.times.size()) * quantile);
    return state.times[std::min(index, state.times.size() - 1)] / 1e3;
  };
  std::printf("{\"ops\":%zu,\"seconds\":%.6f,\"p50\":%.2f,\"p99\":%.2f,\"p999\":%.2f,\"user\":%.6f,\"sys\":%.6f,\"sum\":%" PRIu64 "}\n",
              state.times.size(), seconds, percentile_us(0.5), percentile_us(0.99), percentile_us(0.999), seconds_of(after.ru_utime) - seconds_of(before.ru_utime),
              seconds_of(after.ru_stime) - seconds_of(before.ru_stime), total);
}
