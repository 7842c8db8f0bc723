// The file benchmarks on io_uring without a runtime: the lower bound. The rows are those of
// kit/src/files/mod.rs.
//
// One thread and one ring. Each slot is a task: a small state machine with one operation in flight.
// `open` is a chain of three linked operations on a direct descriptor. `append` has a manual group
// commit: while one fdatasync is under way, the tasks that have written wait for the next.
//
// Two options isolate causes (bench/notes/2026-11-28-evaluation-history.md). `--gather N` submits
// as soon as N operations have started, and not only after all completions are processed. `--calls`
// opens, reads and closes by three system calls per file, as Upshift does, without the ring.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, LONG = 1 << 20, RECORD = 512, SMALL = 10000, SMALL_LENGTH = 4000, BULK = 8, MAX_TASKS = 1024 };
#define BIG (512ull << 20)
#define OUT (64ull << 20)

enum row { OPEN, RANDOM, READ, WRITE, APPEND, MIXED, CHECK };
static const char *const rows[] = {"open", "random", "read", "write", "append", "mixed", "check"};

/// The kind of a completion; the slot is in the upper bits.
enum op { IO, OPENED, CLOSED, SYNCED, ASKED, ANSWERED };

struct slot {
    char *buffer;
    int fd;
    uint64_t piece, start_time, next;
    char path[512];
};

static struct io_uring ring;
static struct slot slots[MAX_TASKS];
static enum row row;
static const char *dir = ".";
static unsigned tasks = 32, running, gather, gathered;
static double seconds = 1;
static bool direct, once, stopped, syncing, calls;
static uint64_t until, next_piece;
static unsigned written[MAX_TASKS], written_count, in_sync[MAX_TASKS], in_sync_count;
static uint32_t *times;
static size_t times_count, times_room;
static int big, peer = -1;

static _Noreturn void die(const char *what) {
    perror(what);
    exit(1);
}

static void check(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t word(uint64_t number, uint64_t index) {
    uint64_t z = (number << 40 | index) + 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t first_word(const void *bytes) {
    uint64_t result;
    memcpy(&result, bytes, 8);
    return result;
}

static uint64_t sum(const char *bytes, size_t length) {
    uint64_t result = 0;
    for (size_t i = 0; i < length; i += 8) result += first_word(bytes + i);
    return result;
}

/// Returns the number of the `index`-th block to read.
static uint64_t shuffled(uint64_t index) {
    const uint64_t blocks = BIG / BLOCK;
    uint64_t x = index % blocks;
    x ^= x >> 9;
    x = x * 0x9e3779b9 % blocks;
    x ^= x >> 8;
    x = x * 0x85ebca6b % blocks;
    return x ^ x >> 9;
}

static char *aligned(size_t length) {
    char *result = aligned_alloc(4096, length < 4096 ? 4096 : length);
    check(result != NULL, "no memory");
    memset(result, 0, length);
    return result;
}

static char *pattern(size_t length) {
    char *result = aligned(length);
    for (size_t i = 0; i < length / 8; i++) {
        uint64_t value = word(SMALL, i);
        memcpy(result + 8 * i, &value, 8);
    }
    return result;
}

static int open_file(const char *name, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) die(path);
    return fd;
}

static void count(uint64_t start_time) {
    if (times_count == times_room) {
        times_room = times_room ? 2 * times_room : 1 << 16;
        times = realloc(times, times_room * sizeof *times);
        check(times != NULL, "no memory");
    }
    uint64_t elapsed_ns = now() - start_time;
    times[times_count++] = elapsed_ns > UINT32_MAX ? UINT32_MAX : elapsed_ns;
}

static struct io_uring_sqe *entry(unsigned slot, enum op op) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe == NULL) {
        io_uring_submit(&ring);
        sqe = io_uring_get_sqe(&ring);
    }
    sqe->user_data = 0;
    io_uring_sqe_set_data64(sqe, (uint64_t)slot << 8 | op);
    return sqe;
}

#define PREPARE(slot, op, how, ...)                  \
    do {                                             \
        struct io_uring_sqe *sqe = entry(slot, op);  \
        uint64_t data = sqe->user_data;              \
        io_uring_prep_##how(sqe, __VA_ARGS__);       \
        sqe->user_data = data;                       \
    } while (0)

/// Starts the next operation of a slot, if there is one.
static void start(unsigned slot_index) {
    struct slot *slot = &slots[slot_index];
    uint64_t pieces = row == OPEN ? SMALL : row == READ ? BIG / LONG : row == RANDOM ? BIG / BLOCK : OUT / LONG;
    uint64_t *next = row == MIXED ? &slot->next : &next_piece;
    slot->start_time = now();
    if (stopped || slot->start_time >= until || (once && *next >= pieces)) {
        running--;
        return;
    }
    slot->piece = (*next)++ % pieces;
    if (row == RANDOM) slot->piece = shuffled(slot->piece);
    switch (row) {
    case OPEN:
        snprintf(slot->path, sizeof slot->path, "%s/small/%05u", dir, (unsigned)slot->piece);
        PREPARE(slot_index, OPENED, openat_direct, AT_FDCWD, slot->path, O_RDONLY, 0, slot_index);
        ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
        PREPARE(slot_index, IO, read, slot_index, slot->buffer, 2 * BLOCK, 0);
        // These reads are short, and a short read ends an ordinary chain.
        ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].flags |= IOSQE_IO_HARDLINK | IOSQE_FIXED_FILE;
        PREPARE(slot_index, CLOSED, close_direct, slot_index);
        break;
    case RANDOM:
        PREPARE(slot_index, IO, read, slot->fd, slot->buffer, BLOCK, slot->piece * BLOCK);
        break;
    case READ:
        PREPARE(slot_index, IO, read, slot->fd, slot->buffer, LONG, slot->piece * LONG);
        break;
    case APPEND: {
        uint64_t mark = slot_index;
        memcpy(slot->buffer, &mark, 8);
        PREPARE(slot_index, IO, write, slot->fd, slot->buffer, RECORD, 0);
        break;
    }
    default: {
        uint64_t mark = word(SMALL, slot->piece);
        memcpy(slot->buffer, &mark, 8);
        PREPARE(slot_index, IO, write, slot->fd, slot->buffer, LONG, slot->piece * LONG);
    }
    }
    if (gather && ++gathered % gather == 0) io_uring_submit(&ring);
}

/// Runs the row `open` without the ring.
static void open_by_calls(void) {
    struct slot *slot = &slots[0];
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_CACHED};
    struct iovec room = {slot->buffer, 2 * BLOCK};
    while ((slot->start_time = now()) < until && !(once && next_piece >= SMALL)) {
        slot->piece = next_piece++ % SMALL;
        snprintf(slot->path, sizeof slot->path, "%s/small/%05u", dir, (unsigned)slot->piece);
        int fd = syscall(SYS_openat2, AT_FDCWD, slot->path, &how, sizeof how);
        // The kernel's name cache refuses a lookup beside a concurrent rename.
        if (fd < 0) fd = open(slot->path, O_RDONLY | O_CLOEXEC);
        ssize_t length = preadv2(fd, &room, 1, 0, RWF_NOWAIT);
        if (length < 0) length = pread(fd, slot->buffer, 2 * BLOCK, 0);
        close(fd);
        check(length == SMALL_LENGTH && first_word(slot->buffer) == word(slot->piece, 0), "other bytes than in the file");
        count(slot->start_time);
    }
}

/// Starts one fdatasync for all tasks that have written.
static void commit(void) {
    if (syncing || written_count == 0) return;
    memcpy(in_sync, written, written_count * sizeof *written);
    in_sync_count = written_count;
    written_count = 0;
    syncing = true;
    PREPARE(0, SYNCED, fsync, slots[0].fd, IORING_FSYNC_DATASYNC);
}

static char asked[8], answer[BLOCK];
static unsigned request_bytes, unsent_bytes;

static void ask(void) { PREPARE(0, ASKED, recv, peer, asked + request_bytes, 8 - request_bytes, 0); }

static void complete(enum op op, unsigned slot_index, int result) {
    struct slot *slot = &slots[slot_index];
    if (result < 0 && op != ASKED) {
        errno = -result;
        die("an operation failed");
    }
    switch (op) {
    case OPENED:
        break;
    case IO:
        if (row == OPEN) {
            check(result == SMALL_LENGTH && first_word(slot->buffer) == word(slot->piece, 0), "other bytes than in the file");
        } else if (row == RANDOM || row == READ) {
            unsigned size = row == RANDOM ? BLOCK : LONG;
            check(result == (int)size && first_word(slot->buffer) == word(SMALL, slot->piece * size / 8), "other bytes than in the file");
            count(slot->start_time);
            start(slot_index);
        } else if (row == APPEND) {
            check(result == RECORD, "a short write");
            written[written_count++] = slot_index;
            commit();
        } else {
            check(result == LONG, "a short write");
            count(slot->start_time);
            start(slot_index);
        }
        break;
    case CLOSED:
        count(slot->start_time);
        start(slot_index);
        break;
    case SYNCED:
        syncing = false;
        for (unsigned i = 0; i < in_sync_count; i++) {
            count(slots[in_sync[i]].start_time);
            start(in_sync[i]);
        }
        commit();
        break;
    case ASKED:
        if (result <= 0) {
            stopped = true;
            running--;
        } else if ((request_bytes += result) < 8) {
            ask();
        } else {
            PREPARE(0, ANSWERED, read, big, answer, BLOCK, first_word(asked) * BLOCK);
            unsent_bytes = request_bytes = 0;
        }
        break;
    case ANSWERED:
        if (unsent_bytes == 0) {
            check(result == BLOCK, "a short read");
            unsent_bytes = BLOCK;
        } else {
            unsent_bytes -= result;
        }
        if (unsent_bytes == 0)
            ask();
        else
            PREPARE(0, ANSWERED, send, peer, answer + BLOCK - unsent_bytes, unsent_bytes, MSG_NOSIGNAL);
    }
}

static void loop(void) {
    while (running > 0) {
        int submitted = io_uring_submit_and_wait(&ring, 1);
        if (submitted < 0 && submitted != -EINTR) die("io_uring_enter");
        unsigned head;
        unsigned seen = 0;
        struct io_uring_cqe *cqe;
        io_uring_for_each_cqe(&ring, head, cqe) {
            seen++;
            complete(cqe->user_data & 0xff, cqe->user_data >> 8, cqe->res);
        }
        io_uring_cq_advance(&ring, seen);
    }
}

static void run_tasks(uint64_t time) {
    until = now() + time;
    next_piece = 0;
    times_count = 0;
    if (calls) {
        open_by_calls();
        return;
    }
    running = tasks;
    for (unsigned slot_index = 0; slot_index < tasks; slot_index++) start(slot_index);
    loop();
}

static void connection(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 1)) die("listen");
    getsockname(listener, (void *)&address, &size);
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    if ((peer = accept(listener, NULL, NULL)) < 0) die("accept");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double quantile) {
    size_t index = times_count * quantile;
    if (index >= times_count) index = times_count - 1;
    return times_count ? times[index] / 1e3 : 0;
}

static double seconds_of(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

/// Runs a read or write of `check` to its end.
static int run_to_end(struct io_uring_sqe *sqe) {
    (void)sqe;
    io_uring_submit_and_wait(&ring, 1);
    struct io_uring_cqe *cqe;
    if (io_uring_wait_cqe(&ring, &cqe)) die("io_uring_enter");
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

#define RUN(how, ...) ({ struct io_uring_sqe *sqe = entry(0, IO); io_uring_prep_##how(sqe, __VA_ARGS__); run_to_end(sqe); })

static uint64_t check_all(void) {
    uint64_t total = 0;
    char *buffer = aligned(LONG), path[512];
    for (unsigned number = 0; number < SMALL; number += 100) {
        snprintf(path, sizeof path, "%s/small/%05u", dir, number);
        int fd = RUN(openat, AT_FDCWD, path, O_RDONLY, 0);
        check(RUN(read, fd, buffer, 2 * BLOCK, 0) == SMALL_LENGTH, "a small file was not read to its end");
        total += sum(buffer, SMALL_LENGTH);
        RUN(close, fd);
    }
    big = open_file("big", O_RDONLY);
    for (int block = 511; block >= 0; block--) {
        check(RUN(read, big, buffer, BLOCK, (uint64_t)block * BLOCK) == BLOCK, "a block was not read to its end");
        total += sum(buffer, BLOCK);
    }
    for (uint64_t piece = 0; piece < 8; piece++) {
        check(RUN(read, big, buffer, LONG, piece * LONG) == LONG, "a piece was not read to its end");
        total += sum(buffer, LONG);
    }
    int out = open_file("out", O_WRONLY | O_CREAT);
    for (uint64_t piece = 0; piece < 8; piece++) check(RUN(write, out, buffer, LONG, piece * LONG) == LONG, "a piece was not written to its end");
    check(RUN(fsync, out, IORING_FSYNC_DATASYNC) == 0, "fdatasync failed");
    int log = open_file("log", O_WRONLY | O_CREAT | O_APPEND);
    char *record = pattern(RECORD);
    for (int n = 0; n < 20; n++) {
        check(RUN(write, log, record, RECORD, 0) == RECORD, "a record was not appended to its end");
        check(RUN(fsync, log, IORING_FSYNC_DATASYNC) == 0, "fdatasync failed");
    }
    return total;
}

int main(int argc, char **argv) {
    check(argc > 1, "usage: ROW --dir DIR [--seconds S] [--tasks N] [--direct] [--once] [--gather N] [--calls]");
    for (row = OPEN; row <= CHECK && strcmp(argv[1], rows[row]); row++) {}
    check(row <= CHECK, "no such row; the rows are open, random, read, write, append, mixed and check");
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--direct")) direct = true;
        else if (!strcmp(argv[i], "--once")) once = true;
        else if (!strcmp(argv[i], "--calls")) calls = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--gather")) gather = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--dir")) dir = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--seconds")) seconds = atof(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--tasks")) tasks = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--variant")) i++;
    }
    check(tasks > 0 && tasks <= MAX_TASKS, "--tasks: expected 1 to 1024");
    check(!calls || row == OPEN, "--calls requires the row open");
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    if ((errno = -io_uring_queue_init_params(1024, &ring, &params))) die("io_uring_setup");
    io_uring_register_ring_fd(&ring);
    if (row == OPEN && io_uring_register_files_sparse(&ring, MAX_TASKS)) die("io_uring_register");
    uint64_t total = 0;
    if (row == MIXED) connection(), tasks = BULK;
    int flags = row == WRITE || row == MIXED ? O_WRONLY | O_CREAT : row == APPEND ? O_WRONLY | O_CREAT | O_APPEND : O_RDONLY | (direct ? O_DIRECT : 0);
    const char *name = row == WRITE ? "out" : row == APPEND ? "log" : "big";
    int shared = row == OPEN || row == MIXED || row == CHECK ? -1 : open_file(name, flags);
    if (row == RANDOM) posix_fadvise(shared, 0, 0, POSIX_FADV_RANDOM);
    for (unsigned i = 0; i < tasks && row != CHECK; i++) {
        slots[i].buffer = row == WRITE || row == MIXED ? pattern(LONG) : row == APPEND ? pattern(RECORD) : aligned(row == READ ? LONG : 2 * BLOCK);
        slots[i].fd = shared;
        if (row == MIXED) {
            char bulk[32];
            snprintf(bulk, sizeof bulk, "bulk-%u", i);
            slots[i].fd = open_file(bulk, flags);
        }
    }
    if (!once && row != MIXED && row != CHECK) run_tasks(100000000);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    uint64_t start_time = now();
    if (row == CHECK) {
        total = check_all();
    } else if (row == MIXED) {
        big = open_file("big", O_RDONLY);
        until = UINT64_MAX;
        running = tasks + 1;
        ask();
        for (unsigned i = 0; i < tasks; i++) start(i);
        loop();
    } else {
        run_tasks(seconds * 1e9);
    }
    double elapsed = (now() - start_time) / 1e9;
    getrusage(RUSAGE_SELF, &after);
    qsort(times, times_count, sizeof *times, by_size);
    printf("{\"ops\":%zu,\"seconds\":%.6f,\"p50\":%.2f,\"p99\":%.2f,\"p999\":%.2f,\"user\":%.6f,\"sys\":%.6f,\"sum\":%llu}\n", times_count, elapsed,
           percentile_us(0.5), percentile_us(0.99), percentile_us(0.999), seconds_of(after.ru_utime) - seconds_of(before.ru_utime), seconds_of(after.ru_stime) - seconds_of(before.ru_stime),
           (unsigned long long)total);
}
