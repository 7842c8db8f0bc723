// Closures with owned captures, passed to functions that run them: each capture is destroyed once.
// Code for which g++ 12 would destroy a capture twice does not compile.
#include <memory>

#include "runtime.hpp"

namespace {

struct message {
  std::string text;
  std::shared_ptr<int> kept;
};

/// An object that can be moved but not copied, and owns a reference to the value.
struct unique {
  explicit unique(std::shared_ptr<int> kept) : kept(std::make_unique<std::shared_ptr<int>>(std::move(kept))) {}
  std::unique_ptr<std::shared_ptr<int>> kept;
};

u::task<> closures(std::shared_ptr<int> keep) {
  auto suspended = u::suspend([keep](u::waker waker) { waker.wake(); });
  co_await suspended;
  auto blocked = u::blocking([keep] { return *keep; });
  CHECK(co_await blocked == 5);
  auto spawned = u::spawn([keep]() -> u::task<int> {
    co_await u::yield_now();
    co_return *keep;
  });
  CHECK(co_await spawned == 5);
  auto handed = u::spawn(u::handle::current(), [keep]() -> u::task<> { co_await u::yield_now(); });
  CHECK(co_await u::timeout(1min, handed));
  std::stop_source stop;
  auto stopped = u::spawn(stop.get_token(), [keep]() -> u::task<> { co_await u::sleep(1h); });
  stop.request_stop();
  auto ended = co_await stopped.join(u::as_result);
  CHECK(!ended);
  auto moved = u::blocking([only = unique(keep)] { return **only.kept; });
  auto [value, nothing] = co_await u::when_all(moved.join(), u::sleep(1ms));
  CHECK(value == 5);
  u::join_handle<> plain = u::spawn([keep]() -> u::task<> { co_return; });
  plain = u::spawn([keep]() -> u::task<> { co_return; });
  co_await plain;
  std::vector<u::join_handle<>> several;
  several.push_back(u::spawn([keep]() -> u::task<> { co_return; }));
  co_await several.back();
  u::spawn([keep]() -> u::task<> { co_await u::yield_now(); }).detach();
  co_await u::yield_now();
}

u::task<> named_closures(std::shared_ptr<int> keep) {
  auto leave = [keep](u::waker waker) { waker.wake(); };
  co_await u::suspend(leave);
  auto compute = [keep] { return *keep; };
  CHECK(co_await u::blocking(compute) == 5);
  auto make = [keep]() -> u::task<int> { co_return *keep; };
  CHECK(co_await u::spawn(make) == 5);
  std::function<int()> function = compute;
  CHECK(co_await u::blocking(std::move(function)) == 5);
  CHECK(co_await u::blocking([&keep] { return *keep; }) == 5);
}

u::task<> messages(std::shared_ptr<int> keep) {
  auto [send, receive] = u::channel<message>(4);
  message first{"a text that is longer than the small buffer", keep};
  co_await send.send(std::move(first));
  auto second = send.send({"another text that is longer than the small buffer", keep});
  co_await second;
  for (int i = 0; i < 2; ++i) {
    auto got = co_await receive.recv();
    CHECK(got && *got->kept == 5 && got->text.ends_with("than the small buffer"));
  }
}

/// Runs a task with a counted value, and checks that every other owner of the value is gone.
void check_once(u::task<> (*run)(std::shared_ptr<int>)) {
  auto keep = std::make_shared<int>(5);
  on_two_vcpus(run(keep));
  CHECK(keep.use_count() == 1);
}

}  // namespace

TEST(closures_are_destroyed_once) { check_once(closures); }
TEST(closures_with_names_are_destroyed_once) { check_once(named_closures); }
TEST(messages_are_destroyed_once) { check_once(messages); }

#ifdef REFUSED
static u::task<> refused(std::shared_ptr<int> keep) {
#if REFUSED == 1
  co_await u::suspend([keep](u::waker waker) { waker.wake(); });
#elif REFUSED == 2
  co_await u::blocking([keep] {});
#elif REFUSED == 3
  co_await u::spawn([keep]() -> u::task<> { co_return; });
#elif REFUSED == 4
  (void)co_await u::timeout(1s, u::spawn([keep]() -> u::task<> { co_return; }).join());
#elif REFUSED == 5
  std::stop_source stop;
  co_await u::spawn(stop.get_token(), [keep]() -> u::task<> { co_return; });
#elif REFUSED == 6
  co_await u::spawn(u::handle::current(), [keep]() -> u::task<> { co_return; });
#endif
}
#endif

int main(int argc, char** argv) { return run_tests(argc, argv); }
