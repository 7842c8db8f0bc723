// Null pointers, empty objects, and inconsistent settings and buffers give an error or have no
// effect.
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "runtime.hpp"

namespace {

/// Runs a function in a poll of a task of the ABI.
void run_in_a_poll(std::function<void(upshift_cx*)> body) {
  upshift_config config;
  upshift_config_init(&config);
  config.vcpus = 1;
  upshift_runtime* runtime = nullptr;
  CHECK(upshift_runtime_new(&config, &runtime) == 0);
  upshift_task task{&body,
                    [](void* data, upshift_cx* cx) {
                      (*static_cast<std::function<void(upshift_cx*)>*>(data))(cx);
                      return 1;
                    },
                    [](void*) {}};
  void* data = nullptr;
  CHECK(upshift_runtime_block_on(runtime, task, &data) == 0 && data == &body);
  upshift_runtime_free(runtime);
}

int dropped = 0;
const upshift_task finished{nullptr, [](void*, upshift_cx*) { return 1; }, [](void*) { ++dropped; }};
const upshift_task without_poll{nullptr, nullptr, [](void*) { ++dropped; }};

/// Returns a tracked buffer of the ABI.
upshift_buf tracked_buf() { return tracked::make(8).release(); }

}  // namespace

TEST(freeing_null_does_nothing) {
  upshift_runtime_free(nullptr);
  upshift_handle_free(nullptr);
  upshift_file_free(nullptr);
  upshift_mutex_free(nullptr);
  upshift_sender_free(nullptr);
  upshift_receiver_free(nullptr);
  upshift_reader_free(nullptr);
  upshift_writer_free(nullptr);
  upshift_listener_free(nullptr);
  upshift_udp_free(nullptr);
  upshift_bytes_free(nullptr);
  upshift_waker_free(nullptr);
  upshift_join_free(nullptr);
  upshift_string_free(nullptr);
  upshift_op_drop(nullptr);
}

TEST(freed_objects_are_empty) {
  run_in_a_poll([](upshift_cx* cx) {
    upshift_waker waker;
    upshift_waker_new(cx, &waker);
    upshift_waker_wake(&waker);
    upshift_waker_free(&waker);
    upshift_waker_free(&waker);
    upshift_waker_wake(&waker);
    dropped = 0;
    upshift_join join;
    CHECK(upshift_spawn(nullptr, finished, UPSHIFT_INHERIT, &join) == 0);
    CHECK(upshift_join_cid(&join) != UPSHIFT_NO_CID && upshift_join_is_finished(&join) == 0);
    upshift_join_free(&join);
    upshift_join_free(&join);
    upshift_join_cancel(&join);
    void* data = nullptr;
    CHECK(upshift_join_poll(&join, cx, &data) == -EINVAL);
    CHECK(upshift_join_cid(&join) == UPSHIFT_NO_CID && upshift_join_is_finished(&join) == 1);
    upshift_op op;
    op.vtable = nullptr;
    if (upshift_sleep(&op, cx, 0) == 1) CHECK(upshift_op_poll(&op, cx) == 1);
    upshift_op_drop(&op);
    upshift_op_drop(&op);
    CHECK(upshift_op_poll(&op, cx) == 1);
    upshift_mutex* mutex = upshift_mutex_new();
    CHECK(upshift_mutex_unlock(mutex) == -EPERM);
    CHECK(upshift_mutex_try_lock(mutex) == 1 && upshift_mutex_try_lock(mutex) == 0);
    CHECK(upshift_mutex_unlock(mutex) == 0 && upshift_mutex_unlock(mutex) == -EPERM);
    upshift_mutex_free(mutex);
  });
  CHECK(dropped == 1);
}

TEST(null_for_an_object_is_an_error) {
  CHECK(upshift_runtime_new(nullptr, nullptr) == -EINVAL);
  upshift_config_init(nullptr);
  dropped = 0;
  void* data = nullptr;
  CHECK(upshift_runtime_block_on(nullptr, finished, &data) == -EINVAL && dropped == 1);
  CHECK(upshift_runtime_handle(nullptr) == nullptr && upshift_handle_clone(nullptr) == nullptr);
  CHECK(upshift_sender_clone(nullptr) == nullptr);
  CHECK(upshift_listener_fd(nullptr) == -EBADF && upshift_reader_fd(nullptr) == -EBADF);
  CHECK(upshift_file_fd(nullptr) == -EBADF && upshift_udp_fd(nullptr) == -EBADF);
  CHECK(upshift_writer_shutdown(nullptr) == -EBADF);
  CHECK(upshift_udp_local(nullptr, nullptr) == -EINVAL);
  CHECK(upshift_mutex_try_lock(nullptr) == -EINVAL && upshift_mutex_unlock(nullptr) == -EINVAL);
  CHECK(upshift_try_send(nullptr, nullptr) == -EINVAL && upshift_try_receive(nullptr, &data) == -EINVAL);
  CHECK(upshift_channel(1, nullptr, nullptr, nullptr) == -EINVAL);
  CHECK(upshift_listen_tcp("127.0.0.1:0", 0, nullptr) == -EINVAL && upshift_listen_unix("x", nullptr) == -EINVAL);
  CHECK(upshift_udp_bind("127.0.0.1:0", nullptr) == -EINVAL);
  CHECK(upshift_stream_from_fd(dup(0), nullptr, nullptr) == -EINVAL);
  CHECK(upshift_read(0, nullptr) == -EINVAL && upshift_write(1, nullptr) == -EINVAL);
  CHECK(upshift_buf_alloc(1, nullptr) == -EINVAL);
  CHECK(upshift_join_poll(nullptr, nullptr, nullptr) == -EINVAL && upshift_join_is_finished(nullptr) == 1);
  CHECK(upshift_join_cid(nullptr) == UPSHIFT_NO_CID);
  upshift_join_cancel(nullptr);
  upshift_waker_new(nullptr, nullptr);
  upshift_waker_wake(nullptr);
  upshift_yield_now(nullptr);
  upshift_metrics_get(nullptr, nullptr);
  upshift_metrics_level(nullptr, 1, nullptr);
  upshift_metrics metrics;
  upshift_metrics_get(nullptr, &metrics);
  CHECK(metrics.spawned == 0 && upshift_metrics_prometheus(nullptr) == nullptr);
  CHECK(upshift_op_poll(nullptr, nullptr) == -EINVAL);
}

TEST(an_operation_with_null_is_ready_with_an_error) {
  run_in_a_poll([](upshift_cx* cx) {
    upshift_op op;
    op.vtable = nullptr;
    const auto refused = [&op](int ready) { return ready == 1 && op.vtable == nullptr && std::exchange(op.result, 0) == -EINVAL; };
    const auto returns_buffer = [&](auto start) {
      const upshift_buf buf = tracked_buf();
      const bool is_refused = refused(start(&buf));
      CHECK(op.out.buf.data == buf.data);
      buf.release(nullptr, buf.data, buf.capacity);
      return is_refused;
    };
    std::byte room[4];
    auto* to = reinterpret_cast<std::uint8_t*>(room);
    upshift_addr address{};
    CHECK(refused(upshift_recv(&op, cx, nullptr)));
    CHECK(refused(upshift_recv_copy(&op, cx, nullptr, to, 4)) && refused(upshift_recv_exact(&op, cx, nullptr, to, 4)));
    CHECK(refused(upshift_write_copy(&op, cx, nullptr, to, 4)) && refused(upshift_write_bytes(&op, cx, nullptr, nullptr)));
    CHECK(refused(upshift_accept(&op, cx, nullptr)));
    CHECK(refused(upshift_connect_tcp(&op, cx, nullptr)) && refused(upshift_connect_unix(&op, cx, nullptr)));
    CHECK(refused(upshift_open(&op, cx, nullptr, nullptr, 0, 0)) && refused(upshift_file_sync(&op, cx, nullptr, 0)));
    CHECK(refused(upshift_file_len(&op, cx, nullptr)) && refused(upshift_file_set_len(&op, cx, nullptr, 0)));
    CHECK(refused(upshift_mutex_lock(&op, cx, nullptr)) && refused(upshift_receive(&op, cx, nullptr)));
    CHECK(refused(upshift_send(&op, cx, nullptr, to)) && op.out.handles[0] == to);
    CHECK(refused(upshift_udp_send_to(&op, cx, nullptr, to, 4, &address)) && refused(upshift_udp_recv_from(&op, cx, nullptr, to, 4)));
    CHECK(returns_buffer([&](const upshift_buf* buf) { return upshift_recv_into(&op, cx, nullptr, buf); }));
    CHECK(returns_buffer([&](const upshift_buf* buf) { return upshift_write_all(&op, cx, nullptr, buf); }));
    CHECK(returns_buffer([&](const upshift_buf* buf) { return upshift_read_at(&op, cx, nullptr, buf, 0); }));
    CHECK(returns_buffer([&](const upshift_buf* buf) { return upshift_write_at(&op, cx, nullptr, buf, 0); }));
    CHECK(returns_buffer([&](const upshift_buf* buf) { return upshift_write_all_at(&op, cx, nullptr, buf, 0); }));
    // Valid objects with invalid buffers.
    upshift_file* file = upshift_file_from_fd(dup(0));
    CHECK(file != nullptr && refused(upshift_read_at(&op, cx, file, nullptr, 0)) && op.out.buf.data == nullptr);
    const upshift_buf nowhere{nullptr, 4, 4, nullptr, nullptr};
    const upshift_buf longer{to, 5, 4, nullptr, nullptr};
    for (const upshift_buf* buf : {&nowhere, &longer}) {
      CHECK(refused(upshift_write_at(&op, cx, file, buf, 0)) && op.out.buf.len == buf->len);
      CHECK(upshift_read_async(&op, 0, buf, upshift_get_cid()) == -EINVAL);
    }
    CHECK(upshift_write_async(nullptr, 1, &longer, upshift_get_cid()) == -EINVAL);
    upshift_file_free(file);
    upshift_udp* udp = nullptr;
    CHECK(upshift_udp_bind("127.0.0.1:0", &udp) == 0);
    CHECK(refused(upshift_udp_send_to(&op, cx, udp, nullptr, 4, &address)) && refused(upshift_udp_send_to(&op, cx, udp, to, 4, nullptr)));
    CHECK(refused(upshift_udp_recv_from(&op, cx, udp, nullptr, 4)) && upshift_udp_local(udp, nullptr) == -EINVAL);
    upshift_udp_free(udp);
    // There is no token, as in a blocking function, or no memory for the operation.
    CHECK(refused(upshift_sleep(&op, nullptr, 1)));
    CHECK(upshift_sleep(nullptr, cx, 1) == -EINVAL && upshift_recv(nullptr, cx, nullptr) == -EINVAL);
    dropped = 0;
    upshift_join join{};
    CHECK(upshift_spawn(nullptr, without_poll, 1, &join) == -EINVAL && upshift_spawn_blocking(without_poll, &join) == -EINVAL);
    CHECK(dropped == 2);
  });
  CHECK(tracked::alive == 0);
}

TEST(a_second_operation_at_the_same_time_is_refused) {
  on_two_vcpus([]() -> u::task<> {
    auto [one, other] = connected();
    auto waiter = u::spawn([](u::stream& from) -> u::task<std::string> {
      auto data = co_await from.recv();
      co_return std::string(data.view());
    }(one));
    co_await u::sleep(2ms);
    std::byte room[4];
    CHECK((co_await one.recv(u::as_result)).error().value() == EBUSY);
    CHECK((co_await one.read_exact(room, u::as_result)).error().value() == EBUSY);
    auto read = co_await one.read(tracked::make(8), u::as_result);
    CHECK(read.count.error().value() == EBUSY && read.buf.capacity() == 8);
    // The other direction is independent.
    co_await one.write_all(std::string_view("out"));
    co_await other.write_all(std::string_view("in"));
    CHECK(*co_await u::timeout(30s, waiter) == "in");
    auto [to, from] = u::channel<int>(1);
    auto receiving = u::spawn([](u::receiver<int>& from) -> u::task<int> { co_return *co_await from.recv(); }(from));
    co_await u::sleep(2ms);
    bool caught = false;
    try {
      (void)co_await from.recv();
    } catch (const std::system_error& error) {
      caught = error.code().value() == EBUSY;
    }
    CHECK(caught && !from.try_recv());
    co_await to.send(5);
    CHECK(*co_await u::timeout(30s, receiving) == 5);
  }());
  CHECK(tracked::alive == 0);
}

TEST(an_object_that_is_closed_during_an_operation_ends_with_the_operation) {
  on_two_vcpus([]() -> u::task<> {
    auto [one, other] = connected();
    auto [input, output] = std::move(one).split();
    auto waiter = u::spawn([](u::reader& from) -> u::task<std::string> {
      auto data = co_await from.recv();
      co_return std::string(data.view());
    }(input));
    co_await u::sleep(2ms);
    input.close();
    co_await other.write_all(std::string_view("late"));
    CHECK(*co_await u::timeout(30s, waiter) == "late");
    output.close();
    CHECK((co_await other.recv()).empty());
    auto [to, from] = u::channel<std::unique_ptr<counted>>(1);
    auto owner = std::make_unique<u::receiver<std::unique_ptr<counted>>>(std::move(from));
    auto receiving = u::spawn([](u::receiver<std::unique_ptr<counted>>& from) -> u::task<> { (void)co_await from.recv(); }(*owner));
    co_await u::sleep(2ms);
    owner.reset();
    receiving.cancel();
    CHECK(!co_await receiving.join(u::as_result));
    CHECK((co_await to.send(std::make_unique<counted>(), u::as_result)).error().value() == EPIPE);
  }());
  CHECK(counted::alive == 0);
}

TEST(using_a_moved_from_object_is_an_error) {
  on_two_vcpus([]() -> u::task<> {
    const auto is_invalid = [](const auto& outcome) { return outcome.error().value() == EINVAL; };
    std::byte room[4];
    u::stream stream;
    CHECK(is_invalid(co_await stream.recv(u::as_result)) && is_invalid(co_await stream.read_exact(room, u::as_result)));
    auto written = co_await stream.write_all(tracked::make(8), u::as_result);
    CHECK(is_invalid(written.done) && written.buf.capacity() == 8);
    CHECK(is_invalid(co_await stream.write_all(u::bytes(), u::as_result)) && is_invalid(co_await stream.write_all(std::string_view("x"), u::as_result)));
    CHECK(stream.shutdown().error().value() == EBADF && stream.fd() < 0 && stream.peer_address().error().value() == EBADF);
    auto listening = u::listener::tcp("127.0.0.1:0");
    auto listens = std::move(listening);
    CHECK(is_invalid(co_await listening.accept(u::as_result)) && listening.local_address().error().value() == EBADF);
    auto socket = u::udp_socket::bind("127.0.0.1:0");
    auto bound = std::move(socket);
    CHECK(is_invalid(co_await socket.recv_from(room, u::as_result)) && is_invalid(co_await socket.send_to(room, u::address(), u::as_result)));
    CHECK(!socket.local_address() && socket.fd() < 0);
    u::file file;
    CHECK(is_invalid((co_await file.read_at(tracked::make(8), 0, u::as_result)).count) && is_invalid(co_await file.size(u::as_result)));
    CHECK(is_invalid(co_await file.sync(u::as_result)) && is_invalid(co_await file.set_size(1, u::as_result)) && file.fd() < 0);
    auto [to, from] = u::channel<std::unique_ptr<counted>>(2);
    auto sender = std::move(to);
    auto receiver = std::move(from);
    CHECK(is_invalid(co_await to.send(std::make_unique<counted>(), u::as_result)) && !to.try_send(std::make_unique<counted>()));
    auto copy = to;
    CHECK(!copy.try_send(nullptr) && !from.try_recv());
    u::mutex mutex;
    auto moved = std::move(mutex);
    CHECK(!mutex.try_lock() && moved.try_lock());
    int caught = 0;
    try {
      (void)co_await mutex.lock();
    } catch (const std::system_error& error) {
      caught = error.code().value();
    }
    CHECK(caught == EINVAL);
    const u::handle none;
    CHECK(is_invalid(none.wake(u::get_cid())) && is_invalid(none.cancel(u::get_cid())) && is_invalid(none.reprio(u::get_cid(), u::level{1})));
    CHECK(none.metrics().spawned == 0 && none.metrics(u::level{1}).polls == 0 && none.prometheus().empty());
    CHECK(is_invalid(u::spawn(none, twice(1), u::inherit, u::as_result)));
    CHECK(u::handle(none).get() == nullptr);
    u::buffer empty;
    CHECK(empty.append("") && !empty.append("x") && u::buffer(std::string_view()).empty());
  }());
  CHECK(counted::alive == 0 && tracked::alive == 0);
  u::runtime one;
  u::runtime other = std::move(one);
  CHECK(one.block_on(twice(1), u::as_result).error().value() == EINVAL && !one.get_handle());
  CHECK(other.block_on(twice(1)) == 2);
}

TEST(a_runtime_belongs_to_its_thread) {
  u::runtime runtime;
  std::thread([&runtime] { CHECK(runtime.block_on(twice(1), u::as_result).error().value() == EPERM); }).join();
  CHECK(runtime.block_on(twice(1)) == 2);
  CHECK(runtime.block_on([](u::runtime& runtime) -> u::task<int> {
    co_return runtime.block_on(twice(1), u::as_result).error().value();
  }(runtime)) == ENOTRECOVERABLE);
}

TEST(a_runtime_that_is_freed_on_another_thread_continues) {
  static upshift_runtime* runtime;
  CHECK(upshift_runtime_new(nullptr, &runtime) == 0);
  std::thread([] { upshift_runtime_free(runtime); }).join();
  void* data = nullptr;
  const upshift_task freeing_task{nullptr,
                           [](void*, upshift_cx*) {
                             upshift_runtime_free(runtime);
                             return 1;
                           },
                           nullptr};
  CHECK(upshift_runtime_block_on(runtime, freeing_task, &data) == 0 && upshift_runtime_block_on(runtime, finished, &data) == 0);
  upshift_runtime_free(runtime);
}

TEST(a_handle_outlives_its_runtime) {
  u::handle handle;
  u::cid id;
  {
    u::runtime runtime;
    handle = runtime.get_handle();
    id = runtime.block_on([]() -> u::task<u::cid> { co_return u::get_cid(); }());
  }
  CHECK(u::spawn(handle, [](counted) -> u::task<> { co_return; }(counted()), u::inherit, u::as_result).error().value() == ESHUTDOWN);
  CHECK(counted::alive == 0);
  CHECK(handle.wake(id).error().value() == ESRCH && handle.cancel(id).error().value() == ESRCH);
  CHECK(handle.reprio(id, u::level{1}).error().value() == ESRCH);
  (void)handle.metrics();
  (void)handle.prometheus();
}

TEST(settings_that_depend_on_each_other_are_checked) {
  const auto code_for = [](auto change) {
    u::config settings;
    settings.vcpus = 1;
    change(settings);
    return u::runtime::make(settings).error().value();
  };
  CHECK(code_for([](auto& config) { config.pins_len = 1; }) == EINVAL);
  CHECK(code_for([](auto& config) { config.buffers = 16; }) == EINVAL);
  CHECK(code_for([](auto& config) { config.buffer_size = 4096; }) == EINVAL);
  CHECK(code_for([](auto& config) { config.buffers = 16, config.buffer_size = 4096; }) == 0);
  CHECK(code_for([](auto& config) { config.buffers = 65536 + 16, config.buffer_size = 4096; }) == EINVAL);
  static const std::uint32_t cpu = 0;
  CHECK(code_for([](auto& config) { config.pins = &cpu; }) == 0);
  CHECK(code_for([](auto& config) { config.pins = &cpu, config.pins_len = 1; }) == 0);
  static const std::uint32_t no_cpu = 1 << 20;
  for (const auto code : {code_for([](auto& config) { config.pins = &no_cpu, config.pins_len = 1; }), code_for([](auto& config) { config.vcpus = UINT32_MAX; }),
                          code_for([](auto& config) { config.buffers = 17, config.buffer_size = 4096; }), code_for([](auto& config) { config.buffers = 16, config.buffer_size = UINT32_MAX; }),
                          code_for([](auto& config) { config.blocking_threads = 0; }), code_for([](auto& config) { config.quantum_ns = UINT64_MAX; }),
                          code_for([](auto& config) { config.reap_interval_ns = UINT64_MAX; })}) {
    std::printf("%d ", code);
    CHECK(code != ENOTRECOVERABLE);
  }
}

int main(int argc, char** argv) { return run_tests(argc, argv); }
