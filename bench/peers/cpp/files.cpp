// The file benchmarks on Upshift's C++ coroutines, with the rows of kit/src/files.rs. Urgent tasks
// have level 0, the others level 40.
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

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

void check(bool good, const char* what) {
  if (!good) fail(what);
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

std::uint64_t first(const std::byte* bytes) {
  std::uint64_t made;
  std::memcpy(&made, bytes, 8);
  return made;
}

std::uint64_t sum(const buffer& bytes) {
  std::uint64_t made = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 8) made += first(bytes.data() + i);
  return made;
}

void mark(buffer& bytes, std::uint64_t value) { std::memcpy(bytes.data(), &value, 8); }

buffer aligned(std::size_t length) {
  void* data = std::aligned_alloc(4096, length < 4096 ? 4096 : length);
  std::memset(data, 0, length);
  return buffer::with_release(data, length, length, [](void*, std::uint8_t* memory, std::size_t) { std::free(memory); }, nullptr);
}

buffer pattern(std::size_t length) {
  buffer made = aligned(length);
  for (std::size_t i = 0; i < length / 8; ++i) {
    const std::uint64_t value = word(small_files, i);
    std::memcpy(made.data() + 8 * i, &value, 8);
  }
  return made;
}

/// The shared state of a row's tasks.
struct shared {
  const plan& of;
  clock_type::time_point until;
  std::uint64_t next = 0;
  bool stopped = false;
  std::vector<std::uint32_t> times{};

  bool is_over(clock_type::time_point now) const { return stopped || now >= until; }

  /// Returns the next of `pieces` pieces, or `pieces` if none is left.
  std::uint64_t take(std::uint64_t pieces) {
    if (of.once && next >= pieces) return pieces;
    return next++ % pieces;
  }

  void count(clock_type::time_point began) {
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(clock_type::now() - began).count();
    times.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(took, UINT32_MAX)));
  }
};

std::string path_of(const plan& of, std::uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "/small/%05" PRIu64, number);
  return of.dir + name;
}

task<std::size_t> whole(std::string path, buffer& bytes) {
  file opened = co_await file::open(std::move(path));
  transfer read = co_await opened.read_at(std::move(bytes), 0);
  bytes = std::move(read.buf);
  co_return read.count;
}

task<> one(shared& all, const file& on, std::size_t number) {
  const std::string& row = all.of.row;
  buffer bytes = row == "append" ? pattern(record) : row == "random" ? aligned(block) : row == "open" ? aligned(2 * block) : pattern(piece_size);
  while (true) {
    const auto began = clock_type::now();
    if (all.is_over(began)) break;
    if (row == "open") {
      const std::uint64_t taken = all.take(small_files);
      if (taken == small_files) break;
      const std::size_t length = co_await whole(path_of(all.of, taken), bytes);
      check(length == small_length && first(bytes.data()) == word(taken, 0), "other bytes than in the file");
      bytes.resize(2 * block);
    } else if (row == "random" || row == "read") {
      const std::size_t size = row == "random" ? block : piece_size;
      std::uint64_t piece = all.take(big_size / size);
      if (piece == big_size / size) break;
      if (row == "random") piece = shuffled(piece);
      transfer read = co_await on.read_at(std::move(bytes), piece * size);
      bytes = std::move(read.buf);
      check(read.count == size && first(bytes.data()) == word(small_files, piece * size / 8), "other bytes than in the file");
    } else if (row == "append") {
      mark(bytes, number);
      bytes = co_await on.write_all_at(std::move(bytes), 0);
      co_await on.sync(throwing, true);
    } else {
      const std::uint64_t piece = all.take(out_size / piece_size);
      if (piece == out_size / piece_size) break;
      mark(bytes, word(small_files, piece));
      bytes = co_await on.write_all_at(std::move(bytes), piece * piece_size);
    }
    all.count(began);
  }
}

task<file> open_in(const plan& of, std::string name, int flags) { co_return co_await file::open(of.dir + "/" + name, flags); }

task<> run_all(shared& all) {
  const plan& of = all.of;
  file on;
  if (of.row == "write") {
    on = co_await open_in(of, "out", O_WRONLY | O_CREAT);
  } else if (of.row == "append") {
    on = co_await open_in(of, "log", O_WRONLY | O_CREAT | O_APPEND);
  } else if (of.row != "open") {
    on = co_await open_in(of, "big", O_RDONLY | (of.direct ? O_DIRECT : 0));
    if (of.row == "random") posix_fadvise(on.fd(), 0, 0, POSIX_FADV_RANDOM);
  }
  std::vector<join_handle<void>> tasks;
  for (std::size_t number = 0; number < of.tasks; ++number) tasks.push_back(spawn(one(all, on, number), level{0}));
  for (auto& each : tasks) co_await each;
}

task<> serve(stream peer, const file& from) {
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
      transfer read = co_await from.read_at(std::move(answer), number * block);
      answer = co_await peer.write_all(std::move(read.buf));
    }
  }
}

task<> mixed(const plan& of, shared& all, clock_type::time_point& start, rusage& before) {
  listener here = listener::tcp("127.0.0.1:0");
  server::announce(here.fd());
  stream peer = co_await here.accept();
  server::no_delay(peer.fd());
  const file from = co_await open_in(of, "big", O_RDONLY);
  start = clock_type::now();
  getrusage(RUSAGE_SELF, &before);
  std::vector<std::unique_ptr<shared>> each;
  std::vector<file> files;
  std::vector<join_handle<void>> tasks;
  files.reserve(bulk);
  for (std::size_t number = 0; number < bulk; ++number) {
    files.push_back(co_await open_in(of, "bulk-" + std::to_string(number), O_WRONLY | O_CREAT));
    each.push_back(std::make_unique<shared>(shared{of, start + std::chrono::hours(1)}));
    tasks.push_back(spawn(one(*each.back(), files.back(), number), level{40}));
  }
  co_await serve(std::move(peer), from);
  for (auto& writer : each) writer->stopped = true;
  for (auto& writer : tasks) co_await writer;
  for (auto& writer : each) all.times.insert(all.times.end(), writer->times.begin(), writer->times.end());
}

task<std::uint64_t> check_all(const plan& of) {
  std::uint64_t total = 0;
  buffer bytes = aligned(2 * block);
  for (std::uint64_t number = 0; number < small_files; number += 100) {
    check(co_await whole(path_of(of, number), bytes) == small_length, "a small file");
    total += sum(bytes);
    bytes.resize(2 * block);
  }
  const file from = co_await open_in(of, "big", O_RDONLY);
  bytes = aligned(block);
  for (int number = 511; number >= 0; --number) {
    transfer read = co_await from.read_at(std::move(bytes), static_cast<std::uint64_t>(number) * block);
    bytes = std::move(read.buf);
    total += sum(bytes);
  }
  bytes = aligned(piece_size);
  for (std::uint64_t number = 0; number < 8; ++number) {
    transfer read = co_await from.read_at(std::move(bytes), number * piece_size);
    bytes = std::move(read.buf);
    total += sum(bytes);
  }
  const file out = co_await open_in(of, "out", O_WRONLY | O_CREAT);
  for (std::uint64_t number = 0; number < 8; ++number) bytes = co_await out.write_all_at(std::move(bytes), number * piece_size);
  co_await out.sync(throwing, true);
  const file log = co_await open_in(of, "log", O_WRONLY | O_CREAT | O_APPEND);
  bytes = pattern(record);
  for (int number = 0; number < 20; ++number) {
    bytes = co_await log.write_all_at(std::move(bytes), 0);
    co_await log.sync(throwing, true);
  }
  co_return total;
}

plan parse(int argc, char** argv) {
  check(argc > 1, "usage: ROW --dir DIR [--seconds S] [--tasks N] [--direct] [--once]");
  plan made;
  made.row = argv[1];
  for (int at = 2; at < argc; ++at) {
    const std::string name = argv[at];
    if (name == "--direct") {
      made.direct = true;
    } else if (name == "--once") {
      made.once = true;
    } else if (at + 1 == argc) {
      fail("an option without a value");
    } else if (name == "--dir") {
      made.dir = argv[++at];
    } else if (name == "--seconds") {
      made.seconds = std::atof(argv[++at]);
    } else if (name == "--tasks") {
      made.tasks = static_cast<std::size_t>(std::atoi(argv[++at]));
    }
  }
  return made;
}

double of(timeval time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; }

}  // namespace

int main(int argc, char** argv) {
  const plan asked = parse(argc, argv);
  config settings;
  settings.vcpus = 1;
  runtime made(settings);
  const auto until = [](double seconds) {
    return clock_type::now() + std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds));
  };
  std::uint64_t total = 0;
  auto start = clock_type::now();
  rusage before{}, after{};
  const bool is_check = asked.row == "check", is_mixed = asked.row == "mixed";
  if (!asked.once && !is_check && !is_mixed) {
    shared all{asked, until(0.1)};
    made.block_on(run_all(all));
  }
  shared all{asked, until(asked.seconds)};
  start = clock_type::now();
  getrusage(RUSAGE_SELF, &before);
  if (is_check) {
    total = made.block_on(check_all(asked));
  } else if (is_mixed) {
    made.block_on(mixed(asked, all, start, before));
  } else {
    made.block_on(run_all(all));
  }
  const double took = std::chrono::duration<double>(clock_type::now() - start).count();
  getrusage(RUSAGE_SELF, &after);
  std::sort(all.times.begin(), all.times.end());
  const auto at = [&](double quantile) {
    if (all.times.empty()) return 0.0;
    const auto index = static_cast<std::size_t>(static_cast<double>(all.times.size()) * quantile);
    return all.times[std::min(index, all.times.size() - 1)] / 1e3;
  };
  std::printf("{\"ops\":%zu,\"seconds\":%.6f,\"p50\":%.2f,\"p99\":%.2f,\"p999\":%.2f,\"user\":%.6f,\"sys\":%.6f,\"sum\":%" PRIu64 "}\n",
              all.times.size(), took, at(0.5), at(0.99), at(0.999), of(after.ru_utime) - of(before.ru_utime),
              of(after.ru_stime) - of(before.ru_stime), total);
}
