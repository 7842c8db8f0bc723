// A program in C: failures are negative errno values.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <upshift.h>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                       \
    }                                                                                \
  } while (0)

static int dropped;

static void drop(void* data) {
  (void)data;
  ++dropped;
}

static int finish(void* data, struct upshift_cx* cx) {
  (void)data;
  (void)cx;
  return 1;
}

static int cancel_itself(void* data, struct upshift_cx* cx) {
  (void)data;
  (void)cx;
  CHECK(upshift_cancel(NULL, upshift_get_cid()) == 0);
  return 0;
}

// Checks the error of a blocking function when there is no memory for the stack of a thread.
static int block_without_threads(void* data, struct upshift_cx* cx) {
  (void)cx;
  struct rlimit before, none;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  none = before;
  none.rlim_cur = 1;
  struct upshift_task task = {data, finish, drop};
  struct upshift_join join;
  dropped = 0;
  CHECK(setrlimit(RLIMIT_AS, &none) == 0);
  const int code = upshift_spawn_blocking(task, &join);
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(code == -EAGAIN && dropped == 1);
  return 1;
}

static int is_closed(int fd) { return fcntl(fd, F_GETFD) == -1 && errno == EBADF; }

int main(void) {
  struct upshift_listener* listener = NULL;
  CHECK(upshift_listen_unix("", &listener) == -EINVAL);

  struct upshift_reader* reader = NULL;
  struct upshift_writer* writer = NULL;
  CHECK(upshift_stream_from_fd(-1, &reader, &writer) == -EBADF);
  int fd = open("/dev/null", O_RDONLY);
  CHECK(upshift_stream_from_fd(fd, &reader, &writer) == -ENOTSOCK && is_closed(fd));
  fd = socket(AF_INET, SOCK_DGRAM, 0);
  CHECK(upshift_stream_from_fd(fd, &reader, &writer) == -EPROTOTYPE && is_closed(fd));
  CHECK(upshift_file_from_fd(-1) == NULL);

  struct upshift_task task = {NULL, finish, drop};
  struct upshift_join join;
  CHECK(upshift_spawn_blocking(task, &join) == -ENXIO && dropped == 1);

  struct upshift_config config;
  upshift_config_init(&config);
  config.vcpus = 1;
  struct upshift_runtime* runtime = NULL;
  struct rlimit before, none;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  none = before;
  // Only the standard descriptors may be open.
  none.rlim_cur = 3;
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK(upshift_runtime_new(&config, &runtime) == -EMFILE);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);

  CHECK(upshift_runtime_new(&config, &runtime) == 0);
  void* data = NULL;
  struct upshift_task cancelled = {NULL, cancel_itself, drop};
  dropped = 0;
  CHECK(upshift_runtime_block_on(runtime, cancelled, &data) == -ECANCELED && dropped == 1);
  struct upshift_task blocking = {NULL, block_without_threads, drop};
  CHECK(upshift_runtime_block_on(runtime, blocking, &data) == 0);
  upshift_runtime_free(runtime);
  return 0;
}
