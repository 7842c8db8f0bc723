/* upshift.h: the C ABI of Upshift. Made by cbindgen from linux/capi; its rules are in docs/cpp.md. */

#ifndef UPSHIFT_H
#define UPSHIFT_H

#include <stddef.h>
#include <stdint.h>

/*
 The error for a host name without an address, for which the kernel has no errno.
 */
#define UPSHIFT_ENAME 65536

/*
 Number of words of an operation's state.
 */
#define UPSHIFT_OP_WORDS 32

/*
 The level of the spawner.
 */
#define UPSHIFT_INHERIT -1

/*
 Level of short work that must not wait.
 */
#define UPSHIFT_LEVEL_URGENT 0

/*
 Level of requests that a user waits for.
 */
#define UPSHIFT_LEVEL_HIGH 16

/*
 Level of work without a preference: the default.
 */
#define UPSHIFT_LEVEL_NORMAL 32

/*
 Level of work without a waiting user but with a deadline.
 */
#define UPSHIFT_LEVEL_LOW 48

/*
 Level of work that runs when no other work is ready.
 */
#define UPSHIFT_LEVEL_BACKGROUND 63

/*
 An id that no coroutine has.
 */
#define UPSHIFT_NO_CID UINT64_MAX

/*
 The version of the ABI that this header describes. It changes when programs must be recompiled.
 */
#define UPSHIFT_ABI_VERSION 1

/*
 The wake token of one poll: valid until the poll returns, on its thread. An operation that is
 polled with it wakes the task later.
 */
typedef struct upshift_cx upshift_cx;

/*
 An open file. Any thread, several at once; it outlives its operations.
 */
typedef struct upshift_file upshift_file;

/*
 A handle to a runtime. Any thread, several at once.
 */
typedef struct upshift_handle upshift_handle;

/*
 A listening socket. One thread at a time.
 */
typedef struct upshift_listener upshift_listener;

/*
 A mutex of coroutines. Any thread, several at once; free it when no coroutine holds it or waits
 for it.
 */
typedef struct upshift_mutex upshift_mutex;

/*
 The receiving direction of a connection. One thread at a time, one operation at a time: a second
 operation fails with -EBUSY.
 */
typedef struct upshift_reader upshift_reader;

/*
 The receiving side of a channel. One thread at a time.
 */
typedef struct upshift_receiver upshift_receiver;

/*
 A runtime. The thread that creates it also uses and frees it.
 */
typedef struct upshift_runtime upshift_runtime;

/*
 The sending side of a channel. Any thread, several at once; clone it for another owner.
 */
typedef struct upshift_sender upshift_sender;

/*
 A UDP socket. Any thread, several at once.
 */
typedef struct upshift_udp upshift_udp;

/*
 The sending direction of a connection. One thread at a time, one operation at a time: a second
 operation fails with -EBUSY.
 */
typedef struct upshift_writer upshift_writer;

/*
 A coroutine of another language. Its functions are called one at a time, on any thread of the
 runtime, and do not throw.
 */
typedef struct upshift_task {
  /*
   Argument of the functions.
   */
  void *data;
  /*
   Continues the task. Returns 0 if the task waits (it has polled an operation with `cx`, which
   wakes it), or 1 if it has finished. After 1 the function is not called again.
   */
  int (*poll)(void *data, struct upshift_cx *cx);
  /*
   Destroys the task, finished or not.
   */
  void (*drop)(void *data);
} upshift_task;

/*
 A handle: the right to the result of a coroutine. The holder owns it, and may move it by copying
 its words. If all words are 0, as after its use, there is no handle. One thread at a time.
 */
typedef struct upshift_join {
  size_t words[4];
} upshift_join;

/*
 Received bytes, in a buffer of the runtime. `upshift_bytes_free` returns the buffer, on any
 thread; call it soon, because buffers are limited. The struct may be moved by copying its words.
 If all words are 0, there are no bytes and nothing to free.
 */
typedef struct upshift_bytes {
  /*
   The first byte.
   */
  const uint8_t *data;
  /*
   Number of bytes; 0: the peer has ended its direction.
   */
  size_t len;
  size_t owner[6];
} upshift_bytes;

/*
 A buffer of the caller. An operation owns it from its start to its end, and returns it with the
 result. If the operation is dropped, `release` is called after the kernel's terminal completion,
 on a thread of the runtime, in a coroutine or while the runtime shuts down. Until then `data`
 must be valid for `capacity` bytes, from any thread. A null `data` with a capacity, or a `len`
 beyond the capacity, is -EINVAL.
 */
typedef struct upshift_buf {
  /*
   The first byte.
   */
  uint8_t *data;
  /*
   Number of initialised bytes, which a write sends.
   */
  size_t len;
  /*
   Number of bytes that a read may fill.
   */
  size_t capacity;
  /*
   Frees `data`; null: nothing is freed, because the bytes live forever.
   */
  void (*release)(void *context, uint8_t *data, size_t capacity);
  /*
   Argument of `release`.
   */
  void *context;
} upshift_buf;

/*
 The results of an operation besides `result`.
 */
typedef union upshift_out {
  /*
   The buffer that was passed to the operation.
   */
  struct upshift_buf buf;
  /*
   The received bytes.
   */
  struct upshift_bytes bytes;
  /*
   Handles, or plain words.
   */
  size_t words[8];
  /*
   One or two handles.
   */
  void *handles[2];
} upshift_out;

/*
 The memory of an operation. Before its first use, only `vtable` must be set, to null.
 */
typedef struct upshift_op {
  /*
   Null while no operation is in progress.
   */
  const void *vtable;
  /*
   Set when the operation is ready: a count, 0, or a negative errno.
   */
  int64_t result;
  /*
   Set when the operation is ready.
   */
  union upshift_out out;
  size_t state[UPSHIFT_OP_WORDS];
} upshift_op;

/*
 The right to wake a task, from any thread, also after its poll. The holder owns the waker, and
 may move it by copying its words. If all words are 0, there is no waker.
 */
typedef struct upshift_waker {
  size_t words[2];
} upshift_waker;

/*
 Counters of a runtime. They only grow, except `live`, `ready` and `in_flight`.
 */
typedef struct upshift_metrics {
  /*
   Number of coroutines that have not exited.
   */
  uint64_t live;
  /*
   Number of live coroutines that wait for a vCPU.
   */
  uint64_t ready;
  /*
   Number of spawned coroutines.
   */
  uint64_t spawned;
  /*
   Number of exited coroutines.
   */
  uint64_t exited;
  /*
   Number of polls.
   */
  uint64_t polls;
  /*
   Number of suspended polls.
   */
  uint64_t suspensions;
  /*
   Number of operations in the kernel.
   */
  uint64_t in_flight;
  /*
   Number of operations submitted to the kernel.
   */
  uint64_t submitted;
  /*
   Number of system calls that entered the rings.
   */
  uint64_t enters;
} upshift_metrics;

/*
 Metrics of one level of a runtime.
 */
typedef struct upshift_level_metrics {
  /*
   Number of polls.
   */
  uint64_t polls;
  /*
   Number of ready coroutines.
   */
  uint64_t ready;
  /*
   Time in polls, in ns.
   */
  uint64_t run_ns;
  /*
   Median time between ready and polled, in ns.
   */
  uint64_t wait_p50_ns;
  /*
   99th percentile of the same time, in ns.
   */
  uint64_t wait_p99_ns;
} upshift_level_metrics;

/*
 Settings of a runtime. Initialise all with `upshift_config_init`, then change single settings.
 */
typedef struct upshift_config {
  /*
   Number of vCPUs; 0: one per CPU.
   */
  uint32_t vcpus;
  /*
   Maximum number of threads for blocking functions.
   */
  uint32_t blocking_threads;
  /*
   Level of the task of `upshift_runtime_block_on`.
   */
  uint32_t main_level;
  /*
   Preemption of polls: 0 off, 1 if the kernel supports it, 2 required.
   */
  uint32_t preemption;
  /*
   Use of the machine's daemon: 0 off, 1 if there is one, 2 required.
   */
  uint32_t board;
  /*
   Driver of I/O: 0 the value of the environment variable UPSHIFT_DRIVER, or the best that
   works; 1 io_uring; 2 epoll, and threads for files.
   */
  uint32_t driver;
  /*
   Percent of each vCPU's time for the levels from `floor_level` on; 0: strict priority.
   */
  uint32_t floor_percent;
  /*
   Most urgent level that shares `floor_percent`.
   */
  uint32_t floor_level;
  /*
   Number of receive buffers per vCPU and receiving level, a power of two. Set this and
   `buffer_size` together; both 0: the defaults.
   */
  uint32_t buffers;
  /*
   Bytes of a receive buffer; see `buffers`.
   */
  uint32_t buffer_size;
  /*
   Longest time of a poll while a coroutine of equal level waits, ns; 0: the default.
   */
  uint64_t quantum_ns;
  /*
   Time that a vCPU spins before it sleeps, ns; UINT64_MAX: the default.
   */
  uint64_t spin_ns;
  /*
   Longest time that completions wait while coroutines are ready, ns; 0: the default.
   */
  uint64_t reap_interval_ns;
  /*
   Seed of the test mode that shuffles coroutines of equal level and makes every other poll
   yield, at random; 0: off.
   */
  uint64_t chaos;
  /*
   CPUs to pin the vCPUs to; `pins_len` entries.
   */
  const uint32_t *pins;
  /*
   Number of entries of `pins`.
   */
  size_t pins_len;
  /*
   Name of the threads; null: upshift.
   */
  const char *name;
} upshift_config;

/*
 An internet address.
 */
typedef struct upshift_addr {
  /*
   Version of the protocol: 4 or 6.
   */
  uint16_t version;
  /*
   The port, in host byte order.
   */
  uint16_t port;
  /*
   The scope id of an IPv6 address that needs one; else 0.
   */
  uint32_t scope;
  /*
   The address in network byte order: 4 or 16 bytes.
   */
  uint8_t ip[16];
} upshift_addr;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Polls a task once, on a thread for blocking functions, at the level of the caller. The task must
 finish in that poll, and `cx` is null. The handle is awaited like the handle of a coroutine. A
 running task is not ended early. The function owns the task, also on failure. Returns 0, -EAGAIN
 (no thread can be started), -EINVAL (no poll function), -ENOMEM, -ESHUTDOWN, or -ENXIO (no
 runtime on this thread). Called in a coroutine.
 */
int upshift_spawn_blocking(struct upshift_task task, struct upshift_join *join);

/*
 Frees received bytes and sets all words to 0. Does nothing for null. Any thread.
 */
void upshift_bytes_free(struct upshift_bytes *bytes);

/*
 Allocates a buffer of `capacity` bytes with `malloc`. Returns 0, -ENOMEM, or -EINVAL for null.
 Any thread.
 */
int upshift_buf_alloc(size_t capacity, struct upshift_buf *buf);

/*
 Creates a channel for `capacity` messages. `drop` destroys messages that are never received; it
 may be null. Messages move from thread to thread. Returns 0, or -EINVAL for a capacity of 0 or a
 null pointer.
 */
int upshift_channel(size_t capacity,
                    void (*drop)(void *data),
                    struct upshift_sender **sender,
                    struct upshift_receiver **receiver);

/*
 Clones a sender; null for null.
 */
struct upshift_sender *upshift_sender_clone(const struct upshift_sender *sender);

/*
 Frees a sender. Without senders, the channel ends when it is empty. Does nothing for null.
 */
void upshift_sender_free(struct upshift_sender *sender);

/*
 Frees the receiver, after its pending operation, and ends the channel; messages inside are
 dropped. Does nothing for null.
 */
void upshift_receiver_free(struct upshift_receiver *receiver);

/*
 Waits for room and sends a message, which the channel owns from the call on. The result is 0,
 -EPIPE if the receiver is gone, or -EINVAL if `sender` is null; with either error the message is
 in `out.handles[0]`. Dropping the operation earlier drops the message, too.
 */
int upshift_send(struct upshift_op *op,
                 struct upshift_cx *cx,
                 const struct upshift_sender *sender,
                 void *data);

/*
 Sends a message without waiting. Returns 0, -EAGAIN (no room), -EPIPE (the receiver is gone), or
 -EINVAL (null). On an error the caller still owns the message. Any thread.
 */
int upshift_try_send(const struct upshift_sender *sender, void *data);

/*
 Waits for a message. The result is 1, and `out.handles[0]` is the message; 0 if the channel has
 ended; -EBUSY if another operation waits; -EINVAL for null.
 */
int upshift_receive(struct upshift_op *op,
                    struct upshift_cx *cx,
                    struct upshift_receiver *receiver);

/*
 Receives the next message without waiting. Returns 1, with the message in `*data`; 0 if the
 channel has ended; -EAGAIN if it is empty; -EBUSY if an operation waits for a message; -EINVAL
 for null.
 */
int upshift_try_receive(struct upshift_receiver *receiver, void **data);

/*
 Creates a waker of the task that is being polled; an empty waker if `cx` is null.
 */
void upshift_waker_new(struct upshift_cx *cx, struct upshift_waker *waker);

/*
 Wakes the task without consuming the waker. Any thread.
 */
void upshift_waker_wake(const struct upshift_waker *waker);

/*
 Frees a waker and sets its words to 0. Does nothing for null. Any thread.
 */
void upshift_waker_free(struct upshift_waker *waker);

/*
 Wakes the task that is being polled, which is then polled again, behind the ready tasks of its
 level. Called by a task that yields by returning 0.
 */
void upshift_yield_now(struct upshift_cx *cx);

/*
 Returns 1 if work at least as urgent waits, and the task should yield (`upshift_yield_now`, and
 return 0); 0 if it may continue. Called in a poll.
 */
int upshift_should_yield(void);

/*
 Opens a file like `open(2)`: `out.handles[0]` is an upshift_file. If `beneath` is not null, the
 path is relative to that directory and cannot lead outside of it.
 */
int upshift_open(struct upshift_op *op,
                 struct upshift_cx *cx,
                 const struct upshift_file *beneath,
                 const char *path,
                 int flags,
                 uint32_t mode);

/*
 Adopts the descriptor of an open file: the returned upshift_file owns it from the call on.
 Returns null for a descriptor that is not open. Any thread.
 */
struct upshift_file *upshift_file_from_fd(int fd);

/*
 Returns the file's descriptor, which the file still owns; -EBADF for null.
 */
int upshift_file_fd(const struct upshift_file *file);

/*
 Frees a file. Does nothing for null. Any thread.
 */
void upshift_file_free(struct upshift_file *file);

/*
 Reads at a position into a buffer, up to its capacity: the result is the count, 0 at the end of
 the file; out.buf is the buffer.
 */
int upshift_read_at(struct upshift_op *op,
                    struct upshift_cx *cx,
                    const struct upshift_file *file,
                    const struct upshift_buf *buf,
                    uint64_t offset);

/*
 Writes a buffer at a position: the result is the count, which may be less than all; out.buf is
 the buffer.
 */
int upshift_write_at(struct upshift_op *op,
                     struct upshift_cx *cx,
                     const struct upshift_file *file,
                     const struct upshift_buf *buf,
                     uint64_t offset);

/*
 Writes all of a buffer at a position: result 0; out.buf is the buffer.
 */
int upshift_write_all_at(struct upshift_op *op,
                         struct upshift_cx *cx,
                         const struct upshift_file *file,
                         const struct upshift_buf *buf,
                         uint64_t offset);

/*
 Waits until written data is on the device, and also the metadata unless `data_only` is set.
 Result 0.
 */
int upshift_file_sync(struct upshift_op *op,
                      struct upshift_cx *cx,
                      const struct upshift_file *file,
                      int data_only);

/*
 Reads the length of a file. The result is the length in bytes, or -EISDIR for a directory.
 */
int upshift_file_len(struct upshift_op *op, struct upshift_cx *cx, const struct upshift_file *file);

/*
 Truncates a file, or extends it by a hole. Result 0.
 */
int upshift_file_set_len(struct upshift_op *op,
                         struct upshift_cx *cx,
                         const struct upshift_file *file,
                         uint64_t len);

/*
 Returns the metrics of the runtime of `handle`, or of the caller's runtime if it is null; zeros
 if there is no runtime. Takes a few microseconds. Any thread.
 */
void upshift_metrics_get(const struct upshift_handle *handle, struct upshift_metrics *metrics);

/*
 Returns the metrics of a level; zeros for an unused level. `handle` has the same meaning as in
 `upshift_metrics_get`. Any thread.
 */
void upshift_metrics_level(const struct upshift_handle *handle,
                           uint32_t level,
                           struct upshift_level_metrics *metrics);

/*
 Returns all metrics in the text format of Prometheus, or null if there is no runtime. Free the
 string with `upshift_string_free`. `handle` has the same meaning as in `upshift_metrics_get`.
 Any thread.
 */
char *upshift_metrics_prometheus(const struct upshift_handle *handle);

/*
 Frees a string. Does nothing for null. Any thread.
 */
void upshift_string_free(char *string);

/*
 Creates an unlocked mutex.
 */
struct upshift_mutex *upshift_mutex_new(void);

/*
 Frees a mutex that no coroutine holds or waits for. Does nothing for null.
 */
void upshift_mutex_free(struct upshift_mutex *mutex);

/*
 Waits for the mutex and locks it; the most urgent waiter is first. Result 0. When the operation
 is ready, the caller holds the mutex and must unlock it.
 */
int upshift_mutex_lock(struct upshift_op *op,
                       struct upshift_cx *cx,
                       const struct upshift_mutex *mutex);

/*
 Tries to lock the mutex. Returns 1 if the caller now holds it, 0 if another coroutine holds it,
 or -EINVAL for null. Any thread.
 */
int upshift_mutex_try_lock(const struct upshift_mutex *mutex);

/*
 Unlocks the mutex and hands it to the most urgent waiter. Called by the holder. Returns 0,
 -EPERM if the mutex is not locked, or -EINVAL for null.
 */
int upshift_mutex_unlock(const struct upshift_mutex *mutex);

/*
 Binds `host:port` and listens, with SO_REUSEADDR. If `reuseport` is not 0, also sets
 SO_REUSEPORT; then `address` must be numeric. Returns 0 or a negative errno. Any thread.
 */
int upshift_listen_tcp(const char *address, int reuseport, struct upshift_listener **listener);

/*
 Binds a path and listens. Returns 0 or a negative errno; -EINVAL if the path is empty or has
 more than 107 bytes. Any thread.
 */
int upshift_listen_unix(const char *path, struct upshift_listener **listener);

/*
 Returns the listener's descriptor, which the listener still owns; -EBADF for null.
 */
int upshift_listener_fd(const struct upshift_listener *listener);

/*
 Frees a listener. Does nothing for null.
 */
void upshift_listener_free(struct upshift_listener *listener);

/*
 Waits for a connection: out.handles are its reader and its writer.
 */
int upshift_accept(struct upshift_op *op,
                   struct upshift_cx *cx,
                   const struct upshift_listener *listener);

/*
 Connects to `host:port`: out.handles are the connection's reader and writer.
 */
int upshift_connect_tcp(struct upshift_op *op, struct upshift_cx *cx, const char *address);

/*
 Connects to the socket at a path: out.handles are the connection's reader and writer.
 */
int upshift_connect_unix(struct upshift_op *op, struct upshift_cx *cx, const char *path);

/*
 Adopts a connected stream socket, TCP or Unix: the connection owns the descriptor from the call
 on, also on failure. Returns 0 or a negative errno: -EBADF (no open descriptor), -ENOTSOCK,
 -EPROTOTYPE (not a stream socket), -EAFNOSUPPORT (neither TCP nor Unix), -EINVAL (a listening
 socket). Any thread.
 */
int upshift_stream_from_fd(int fd, struct upshift_reader **reader, struct upshift_writer **writer);

/*
 Waits for data, in a buffer of the runtime. The result is its length, or 0 if the peer has ended
 its direction; out.bytes is the data. Dropping the operation early loses no data.
 */
int upshift_recv(struct upshift_op *op, struct upshift_cx *cx, struct upshift_reader *reader);

/*
 Reads into a buffer, up to its capacity: the result is the count, 0 if the peer has ended its
 direction; out.buf is the buffer.
 */
int upshift_recv_into(struct upshift_op *op,
                      struct upshift_cx *cx,
                      struct upshift_reader *reader,
                      const struct upshift_buf *buf);

/*
 Copies received bytes to `data`, at most `len`. The kernel never sees that memory, which must
 live until the operation ends. The result is the count, or 0 if the peer has ended its
 direction.
 */
int upshift_recv_copy(struct upshift_op *op,
                      struct upshift_cx *cx,
                      struct upshift_reader *reader,
                      uint8_t *data,
                      size_t len);

/*
 Receives like `upshift_recv_copy` until `data` is full: the result is `len`, or less if the peer
 has ended its direction. An operation that is dropped early has consumed the bytes that had
 arrived by then.
 */
int upshift_recv_exact(struct upshift_op *op,
                       struct upshift_cx *cx,
                       struct upshift_reader *reader,
                       uint8_t *data,
                       size_t len);

/*
 Writes all of a buffer through the ring: result 0; out.buf is the buffer. On an error an unknown
 part was sent.
 */
int upshift_write_all(struct upshift_op *op,
                      struct upshift_cx *cx,
                      struct upshift_writer *writer,
                      const struct upshift_buf *buf);

/*
 Writes all of the received bytes, which the operation owns from the call on: result 0.
 */
int upshift_write_bytes(struct upshift_op *op,
                        struct upshift_cx *cx,
                        struct upshift_writer *writer,
                        const struct upshift_bytes *bytes);

/*
 Sends all of `len` bytes by system calls that do not wait. The kernel has copied the bytes when
 the operation ends, so they need only live until then. The result is `len`.
 */
int upshift_write_copy(struct upshift_op *op,
                       struct upshift_cx *cx,
                       struct upshift_writer *writer,
                       const uint8_t *data,
                       size_t len);

/*
 Returns the connection's descriptor, which the connection still owns; -EBADF for null.
 */
int upshift_reader_fd(const struct upshift_reader *reader);

/*
 Frees the receiving direction, after the operation that is under way. Does nothing for null.
 */
void upshift_reader_free(struct upshift_reader *reader);

/*
 Tells the peer that no more data follows. Returns 0 or a negative errno; -EBADF for null.
 */
int upshift_writer_shutdown(const struct upshift_writer *writer);

/*
 Frees the sending direction, after the operation that is under way, and tells the peer that no
 more data follows. Does nothing for null.
 */
void upshift_writer_free(struct upshift_writer *writer);

/*
 Polls an operation that was not ready. Returns 1 if it is ready, else 0; -EINVAL for null.
 Called in a poll of the task.
 */
int upshift_op_poll(struct upshift_op *op, struct upshift_cx *cx);

/*
 Ends an operation. An operation in progress is cancelled, and its buffers are released when the
 kernel is done with them. Does nothing for null. Any thread.
 */
void upshift_op_drop(struct upshift_op *op);

/*
 Sets all settings to their defaults. Does nothing for null.
 */
void upshift_config_init(struct upshift_config *config);

/*
 Creates a runtime with these settings, or with the defaults if `config` is null. Returns 0;
 -EINVAL for an invalid setting, or for a setting without another setting that it depends on; or
 the negative errno of another failure, whose reason is printed on standard error.
 */
int upshift_runtime_new(const struct upshift_config *config, struct upshift_runtime **runtime);

/*
 Runs a task as the main coroutine on the calling thread until it finishes. If the function
 returns 0, `*data` is the finished task's data, which the caller must destroy. If it returns a
 negative errno, the task has been dropped (-ECANCELED: the main coroutine was cancelled by its
 id; -EPERM: another thread has created the runtime; -EINVAL: a null pointer, or no poll
 function; -ENOTRECOVERABLE: called in a coroutine, or Rust code in the task has panicked).
 */
int upshift_runtime_block_on(struct upshift_runtime *runtime,
                             struct upshift_task task,
                             void **data);

/*
 Cancels every coroutine, waits for the kernel's operations, and ends the threads. Does nothing
 for null. In a coroutine, or on a thread that has not created the runtime, the function only
 prints an error on standard error: the runtime continues.
 */
void upshift_runtime_free(struct upshift_runtime *runtime);

/*
 Creates a handle to a runtime; null for null.
 */
struct upshift_handle *upshift_runtime_handle(const struct upshift_runtime *runtime);

/*
 Creates a handle to the runtime of the calling coroutine; null outside a coroutine.
 */
struct upshift_handle *upshift_handle_current(void);

/*
 Clones a handle; null for null. Any thread.
 */
struct upshift_handle *upshift_handle_clone(const struct upshift_handle *handle);

/*
 Frees a handle. Does nothing for null. Any thread.
 */
void upshift_handle_free(struct upshift_handle *handle);

/*
 Adds a vCPU to the caller's runtime. Returns its index, or a negative errno.
 */
int upshift_alloc_cpu(void);

/*
 Releases the vCPU of the caller's runtime that was added last. Returns its index, or a negative
 errno.
 */
int upshift_release_cpu(void);

/*
 Calls `read(2)` into `buf` up to its capacity, at the file's own position, and blocks the
 thread. Returns the count, which then is the buffer's length, or a negative errno. Any thread.
 */
int64_t upshift_read(int fd, struct upshift_buf *buf);

/*
 Calls `write(2)` with the buffer's bytes, at the file's own position, and blocks the thread.
 Returns the count or a negative errno. Any thread.
 */
int64_t upshift_write(int fd, const struct upshift_buf *buf);

/*
 Starts a read at once: the asynchronous form of `upshift_read`. The read wakes the coroutine
 `cid` when it is done. Poll `op` for the result (the count; out.buf is the buffer). Called in a
 poll. Returns 0 or a negative errno. After an error the caller still owns the buffer, except
 after -ENOTRECOVERABLE: then the buffer has been released.
 */
int upshift_read_async(struct upshift_op *op, int fd, const struct upshift_buf *buf, uint64_t cid);

/*
 Starts a write at once, like `upshift_read_async`.
 */
int upshift_write_async(struct upshift_op *op, int fd, const struct upshift_buf *buf, uint64_t cid);

/*
 Starts a coroutine at a level (0 to 63, or UPSHIFT_INHERIT), in the runtime of `handle`, or of
 the caller if `handle` is null. If `join` is null, the coroutine is detached. The function owns
 the task, also on failure. Returns 0, -EINVAL (an invalid level, or no poll function), -ENOMEM,
 -ESHUTDOWN, or -ENXIO (no runtime on this thread). Any thread.
 */
int upshift_spawn(const struct upshift_handle *handle,
                  struct upshift_task task,
                  int level,
                  struct upshift_join *join);

/*
 Waits for a coroutine, in a poll of a task, and lends it the waiter's level. Returns 0 if the
 coroutine has not finished; 1 if it has, and `*data` is the data of its task, which the caller
 must destroy; -ECANCELED if it was cancelled; -ENOTRECOVERABLE if Rust code in it has panicked;
 -EINVAL if there is no handle, or a pointer is null. The handle is used up unless the result is
 0.
 */
int upshift_join_poll(struct upshift_join *join, struct upshift_cx *cx, void **data);

/*
 Returns the id of a coroutine, or UPSHIFT_NO_CID.
 */
uint64_t upshift_join_cid(const struct upshift_join *join);

/*
 Returns 1 if the coroutine has exited, or if there is no handle; else 0.
 */
int upshift_join_is_finished(const struct upshift_join *join);

/*
 Cancels the coroutine: its task is dropped when it is next due, not within a poll.
 */
void upshift_join_cancel(const struct upshift_join *join);

/*
 Frees the handle and sets its words to 0: the coroutine continues, and its result is dropped.
 Does nothing for null.
 */
void upshift_join_free(struct upshift_join *join);

/*
 Returns the id of the calling coroutine, or UPSHIFT_NO_CID outside a coroutine.
 */
uint64_t upshift_get_cid(void);

/*
 Returns the effective level of the calling coroutine, or -ENXIO outside a coroutine.
 */
int upshift_current_level(void);

/*
 Wakes a coroutine of the runtime of `handle`, or of the caller's runtime if `handle` is null.
 Returns 0, or -ESRCH if the coroutine has exited. Any thread with a handle.
 */
int upshift_wake(const struct upshift_handle *handle, uint64_t cid);

/*
 Changes the level of a coroutine, in any state, in constant time. Returns 0, -ESRCH if the
 coroutine has exited, or -EINVAL for a level beyond 63. Any thread with a handle.
 */
int upshift_reprio(const struct upshift_handle *handle, uint64_t cid, int level);

/*
 Cancels a coroutine: its task is dropped when it is next due. Returns 0, -ESRCH if the coroutine
 has exited, or -EIO if `handle` is null outside a runtime. Any thread with a handle.
 */
int upshift_cancel(const struct upshift_handle *handle, uint64_t cid);

/*
 Waits for a number of nanoseconds. Result 0.
 */
int upshift_sleep(struct upshift_op *op, struct upshift_cx *cx, uint64_t nanoseconds);

/*
 Binds `host:port`. Returns 0 or a negative errno. Any thread.
 */
int upshift_udp_bind(const char *address, struct upshift_udp **socket);

/*
 Returns the socket's descriptor, which the socket still owns; -EBADF for null.
 */
int upshift_udp_fd(const struct upshift_udp *socket);

/*
 Stores the address to which the socket is bound. Returns 0 or a negative errno.
 */
int upshift_udp_local(const struct upshift_udp *socket, struct upshift_addr *address);

/*
 Frees a socket, which must have no pending operations. Does nothing for null.
 */
void upshift_udp_free(struct upshift_udp *socket);

/*
 Sends a datagram of `len` bytes, which must live until the operation ends. The result is the
 count.
 */
int upshift_udp_send_to(struct upshift_op *op,
                        struct upshift_cx *cx,
                        const struct upshift_udp *socket,
                        const uint8_t *data,
                        size_t len,
                        const struct upshift_addr *to);

/*
 Receives a datagram into `len` bytes, which must live until the operation ends; excess bytes are
 lost. The result is the count; `out` contains the sender's address, an upshift_addr.
 */
int upshift_udp_recv_from(struct upshift_op *op,
                          struct upshift_cx *cx,
                          const struct upshift_udp *socket,
                          uint8_t *data,
                          size_t len);

/*
 Returns the version of the library: major << 16 | minor << 8 | patch. Any thread.
 */
uint32_t upshift_version(void);

/*
 Returns UPSHIFT_ABI_VERSION of the loaded library. A program that was compiled with another
 version must not continue. Any thread.
 */
uint32_t upshift_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UPSHIFT_H */
