// Typical mistakes of beginners. Each is compiled separately (`-DREFUSED=n`), and the compiler must
// reject it with a message that shows the right form.
#include <coroutine>
#include <future>
#include <thread>
#include <upshift/upshift.hpp>

namespace u = upshift;
using namespace std::chrono_literals;

/// An awaitable of another library: it resumes the coroutine on a thread of its own.
struct foreign {
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> here) {
    std::thread([here] { here.resume(); }).detach();
  }
  int await_resume() const noexcept { return 5; }
};

/// The same awaitable for coroutines with any promise, and behind an operator.
struct foreign_of_any_promise {
  struct awaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise>) {}
    void await_resume() const noexcept {}
  };
  awaiter operator co_await() const noexcept { return {}; }
};

/// An awaitable of the program that wraps an awaitable of Upshift.
struct wrapped_yield {
  auto operator co_await() const noexcept { return u::detail::yield_awaiter{true}; }
};

u::task<int> number() { co_return 1; }

u::task<> correct_uses(foreign_of_any_promise, std::future<int> later) {
  auto named = number();
  co_await std::move(named);
  co_await u::spawn(number(), u::level{4});
  co_await wrapped_yield();
  auto suspended = u::suspend([](u::waker waker) { waker.wake(); });
  co_await suspended;
  co_await u::blocking([&later] { return later.get(); });
}

#if REFUSED == 1
u::task<int> refused() { co_return co_await foreign(); }
#elif REFUSED == 2
u::task<> refused(std::future<int> later) { co_await later; }
#elif REFUSED == 3
u::task<> refused(foreign_of_any_promise other) { co_await other; }
#elif REFUSED == 4
u::task<int> refused() {
  auto named = number();
  co_return co_await named;
}
#elif REFUSED == 5
u::task<> refused() { co_await u::spawn(number(), 4); }
#elif REFUSED == 6
u::task<> refused() { u::spawn([] { return number(); }, 4).detach(); co_return; }
#elif REFUSED == 7
void refused(const u::handle& in) { u::spawn(in, number(), 4).detach(); }
#endif
