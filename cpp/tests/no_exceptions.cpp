// Compiled with -fno-exceptions -fno-rtti: errors are results, a cancelled coroutine is one too. Linked with a file that has exceptions.
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
