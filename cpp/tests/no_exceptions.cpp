// Compiled with -fno-exceptions -fno-rtti: errors and cancelled coroutines are results. Linked with
// a file that has exceptions.
#include <unistd.h>

#include <upshift/upshift.hpp>

#include "check.hpp"

namespace u = upshift;
using namespace std::chrono_literals;

static_assert(UPSHIFT_EXCEPTIONS == 0);

int with_exceptions();

namespace {

u::task<u::result<int>> half(int n) {
  co_await u::yield_now();
  if (n % 2 != 0) co_return u::result<int>::failure(-EINVAL);
  co_return n / 2;
}

u::task<> all() {
  auto even = u::spawn(half(4), u::level{3}, u::as_result);
  CHECK(even);
  auto joined = co_await even->join(u::as_result);
  CHECK(joined && *joined && **joined == 2);
  auto odd = u::spawn(half(3));
  CHECK((co_await odd).error() == std::errc::invalid_argument);
  CHECK((co_await u::file::open("/nonexistent", O_RDONLY, u::as_result)).error() == std::errc::no_such_file_or_directory);
  auto forever = u::spawn([]() -> u::task<> { co_await u::sleep(1h); });
  forever.cancel();
  CHECK((co_await forever.join(u::as_result)).error() == std::errc::operation_canceled);
  CHECK(co_await u::blocking([] { return 5; }) == 5);
  // A second await, or an empty task, gives the error too.
  auto once = half(8);
  CHECK(*co_await std::move(once) == 4);
  CHECK((co_await std::move(once)).error() == std::errc::invalid_argument);
  CHECK((co_await u::timeout(1min, std::move(once)))->error() == std::errc::invalid_argument);
  CHECK(u::spawn(std::move(once), u::inherit, u::as_result).error() == std::errc::invalid_argument);
  CHECK((co_await even->join(u::as_result)).error() == std::errc::invalid_argument);
  int fds[2];
  CHECK(pipe(fds) == 0);
  {
    auto call = u::read(fds[0], u::buffer(8), u::get_cid());
    call.stop();
    CHECK((co_await call).count.error() == std::errc::operation_canceled);
  }
  close(fds[0]);
  close(fds[1]);
  auto [to, from] = u::channel<int>(1);
  CHECK(co_await to.send(9, u::as_result));
  CHECK(*co_await from.recv() == 9);
}

}  // namespace

int main() {
  auto runtime = u::runtime::make();
  CHECK(runtime);
  runtime->block_on(all());
  CHECK(with_exceptions() == 1);
  std::printf("test result: ok. 1 passed; 0 failed\n");
}
