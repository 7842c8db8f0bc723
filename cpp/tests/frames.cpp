// Frames: lifetime, nesting depth, and origin of their memory.
#include <memory_resource>
#include <string>
#include <thread>

#include "runtime.hpp"

#define COUNTS_BLOCKS (UPSHIFT_KEEPS_FRAMES && !THREAD_SANITIZED)

// Number of live heap blocks; not counted where a sanitizer has its own operators.
[[maybe_unused]] static std::atomic<long> blocks = 0;
#if COUNTS_BLOCKS
void* operator new(std::size_t size) {
  ++blocks;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept {
  if (block != nullptr) --blocks;
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
#endif

TEST(a_task_that_is_never_begun_is_destroyed) {
  {
    auto unused = [](counted) -> u::task<> { co_return; }(counted());
    CHECK(counted::alive == 1);
  }
  CHECK(counted::alive == 0);
}

TEST(the_captures_of_a_lambda_live_as_long_as_its_coroutine) {
  on_one_vcpu([]() -> u::task<> {
    std::string text(100, 'c');
    auto handle = u::spawn([text]() -> u::task<std::size_t> {
      co_await u::sleep(1ms);
      co_return text.size();
    });
    CHECK(co_await handle == 100);
  }());
}

namespace {

u::task<long> depth(long n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await depth(n - 1);
}

u::task<long> ready(long n) { co_return n; }

u::task<> deep_wait(long n) {
  counted frame;
  if (n == 0) {
    co_await u::sleep(1h);
  } else {
    co_await deep_wait(n - 1);
  }
}

}  // namespace

TEST(deep_and_long_trees_do_not_use_the_stack) {
  on_one_vcpu([]() -> u::task<> {
    CHECK(co_await depth(20'000) == 20'000);
    long sum = 0;
    for (long n = 0; n < 200'000; ++n) sum += co_await ready(1);
    CHECK(sum == 200'000);
  }());
}

TEST(a_deep_tree_is_cancelled_without_using_the_stack) {
  on_two_vcpus([]() -> u::task<> {
    for (int i = 0; i < 2; ++i) {
      auto handle = u::spawn(deep_wait(200'000));
      while (counted::alive != 200'001) co_await u::sleep(1ms);
      if (i == 0) {
        handle.cancel();
        CHECK(!co_await handle.join(u::as_result));
        CHECK(counted::alive == 0);
      } else {
        // The end of the runtime cancels the coroutine.
        handle.detach();
      }
    }
  }());
  CHECK(counted::alive == 0);
}

namespace {

/// A resource that counts its allocations.
struct counting : std::pmr::memory_resource {
  long live = 0;
  long allocations = 0;
  void* do_allocate(std::size_t bytes, std::size_t align) override {
    ++live;
    ++allocations;
    return std::pmr::new_delete_resource()->allocate(bytes, align);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t align) override {
    --live;
    std::pmr::new_delete_resource()->deallocate(p, bytes, align);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

using allocator = std::pmr::polymorphic_allocator<std::byte>;

[[gnu::noinline]] u::task<int> from(std::allocator_arg_t, allocator, int n) {
  co_await u::yield_now();
  co_return n;
}

struct with_members {
  // Not inlined, like `from`: clang++ would elide the frame on the heap.
  [[gnu::noinline]] u::task<int> run(std::allocator_arg_t, allocator) { co_return 5; }
};

}  // namespace

TEST(frames_come_from_the_given_allocator) {
  counting memory;
  on_one_vcpu([](counting& memory) -> u::task<> {
    CHECK(co_await from(std::allocator_arg, &memory, 3) == 3);
    auto handle = u::spawn(from(std::allocator_arg, &memory, 4));
    CHECK(memory.live == 1);
    CHECK(co_await handle == 4);
    with_members object;
    CHECK(co_await object.run(std::allocator_arg, &memory) == 5);
    { auto unused = from(std::allocator_arg, &memory, 1); }
  }(memory));
  CHECK(memory.allocations == 4 && memory.live == 0);
}

TEST(a_lack_of_memory_for_a_frame_is_an_error) {
  on_one_vcpu([]() -> u::task<> {
    auto empty = from(std::allocator_arg, std::pmr::null_memory_resource(), 1);
    CHECK(!empty);
    CHECK(u::spawn(std::move(empty), u::inherit, u::as_result).error() == std::errc::not_enough_memory);
    bool caught = false;
    try {
      (void)co_await from(std::allocator_arg, std::pmr::null_memory_resource(), 1);
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    CHECK(caught);
  }());
}

#if UPSHIFT_KEEPS_FRAMES

namespace {

/// Returns the address of a variable in the frame of the task.
[[gnu::noinline]] u::task<const void*> frame_address() {
  volatile int local = 0;
  co_await u::yield_now();
  co_return const_cast<const int*>(&local);
}

[[gnu::noinline]] u::task<> unused() { co_return; }

template <std::size_t Size>
[[gnu::noinline]] u::task<> large() {
  volatile char room[Size];
  room[0] = 1;
  co_await u::yield_now();
  room[1] = room[0];
}

}  // namespace

TEST(memory_of_an_ended_frame_is_used_for_the_next_frame) {
  on_one_vcpu([]() -> u::task<> {
    const void* first = co_await frame_address();
    for (int i = 0; i < 10; ++i) CHECK(co_await frame_address() == first);
    const long before = blocks;
    auto handle = u::spawn(frame_address());
    CHECK(blocks <= before + 1);
    co_await handle;
  }());
}

#if COUNTS_BLOCKS
TEST(a_thread_keeps_few_frames_and_none_when_it_ends) {
  long cached = 0;
  const long before = blocks;
  std::thread([&] {
    const long before = blocks;
    {
      std::vector<u::task<>> many;
      for (int i = 0; i < 1000; ++i) many.push_back(unused());
      CHECK(blocks >= before + 1000);
    }
    cached = blocks - before;
    for (int i = 0; i < 100; ++i) (void)large<5000>();
    CHECK(blocks - before == cached);
  }).join();
  // A thread caches at most 128 frames of one size.
  CHECK(cached > 0 && cached <= 128);
  CHECK(blocks == before);
}
#endif

TEST(frames_may_end_on_another_thread) {
  const long before = blocks;
  for (int i = 0; i < 20; ++i) {
    std::vector<u::task<>> many;
    std::thread([&] {
      for (int i = 0; i < 300; ++i) many.push_back(unused());
    }).join();
    std::thread([&] { many.clear(); }).join();
  }
  CHECK(blocks == before);
}

#endif

int main(int argc, char** argv) { return run_tests(argc, argv); }
