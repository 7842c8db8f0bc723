// The file benchmarks on io_uring without a runtime: the floor. The rows are those of
// kit/src/files.rs.
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

enum { BLOCK = 4096, LONG = 1 << 20, RECORD = 512, SMALL = 10000, SMALL_LENGTH = 4000, BULK = 8, MOST = 1024 };
#define BIG (512ull << 20)
#define OUT (64ull << 20)

enum row { OPEN, RANDOM, READ, WRITE, APPEND, MIXED, CHECK };
static const char *const rows[] = {"open", "random", "read", "write", "append", "mixed", "check"};

/// The kind of a completion; the slot is in the upper bits.
enum op { IO, OPENED, CLOSED, SYNCED, ASKED, ANSWERED };

struct slot {
    char *buffer;
    int fd;
    uint64_t piece, began, next;
    char path[512];
};

static struct io_uring ring;
static struct slot slots[MOST];
static enum row row;
static const char *dir = ".";
static unsigned tasks = 32, running, gather, gathered;
static double seconds = 1;
static bool direct, once, stopped, syncing, calls;
static uint64_t until, next_piece;
static unsigned written[MOST], written_count, in_sync[MOST], in_sync_count;
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

static uint64_t first(const void *bytes) {
    uint64_t made;
    memcpy(&made, bytes, 8);
    return made;
}

static uint64_t sum(const char *bytes, size_t length) {
    uint64_t made = 0;
    for (size_t i = 0; i < length; i += 8) made += first(bytes + i);
    return made;
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
    char *made = aligned_alloc(4096, length < 4096 ? 4096 : length);
    check(made != NULL, "no memory");
    memset(made, 0, length);
    return made;
}

static char *pattern(size_t length) {
    char *made = aligned(length);
    for (size_t i = 0; i < length / 8; i++) {
        uint64_t value = word(SMALL, i);
        memcpy(made + 8 * i, &value, 8);
    }
    return made;
}

static int open_file(const char *name, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) die(path);
    return fd;
}

static void count(uint64_t began) {
    if (times_count == times_room) {
        times_room = times_room ? 2 * times_room : 1 << 16;
        times = realloc(times, times_room * sizeof *times);
        check(times != NULL, "no memory");
    }
    uint64_t took = now() - began;
    times[times_count++] = took > UINT32_MAX ? UINT32_MAX : took;
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
static void start(unsigned at) {
    struct slot *slot = &slots[at];
    uint64_t pieces = row == OPEN ? SMALL : row == READ ? BIG / LONG : row == RANDOM ? BIG / BLOCK : OUT / LONG;
    uint64_t *next = row == MIXED ? &slot->next : &next_piece;
    slot->began = now();
    if (stopped || slot->began >= until || (once && *next >= pieces)) {
        running--;
        return;
    }
    slot->piece = (*next)++ % pieces;
    if (row == RANDOM) slot->piece = shuffled(slot->piece);
    switch (row) {
    case OPEN:
        snprintf(slot->path, sizeof slot->path, "%s/small/%05u", dir, (unsigned)slot->piece);
        PREPARE(at, OPENED, openat_direct, AT_FDCWD, slot->path, O_RDONLY, 0, at);
        ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
        PREPARE(at, IO, read, at, slot->buffer, 2 * BLOCK, 0);
        // These reads are short, and a short read ends an ordinary chain.
        ring.sq.sqes[(ring.sq.sqe_tail - 1) & ring.sq.ring_mask].flags |= IOSQE_IO_HARDLINK | IOSQE_FIXED_FILE;
        PREPARE(at, CLOSED, close_direct, at);
        break;
    case RANDOM:
        PREPARE(at, IO, read, slot->fd, slot->buffer, BLOCK, slot->piece * BLOCK);
        break;
    case READ:
        PREPARE(at, IO, read, slot->fd, slot->buffer, LONG, slot->piece * LONG);
        break;
    case APPEND: {
        uint64_t mark = at;
        memcpy(slot->buffer, &mark, 8);
        PREPARE(at, IO, write, slot->fd, slot->buffer, RECORD, 0);
        break;
    }
    default: {
        uint64_t mark = word(SMALL, slot->piece);
        memcpy(slot->buffer, &mark, 8);
        PREPARE(at, IO, write, slot->fd, slot->buffer, LONG, slot->piece * LONG);
    }
    }
    if (gather && ++gathered % gather == 0) io_uring_submit(&ring);
}

/// Runs the row `open` without the ring.
static void open_by_calls(void) {
    struct slot *slot = &slots[0];
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_CACHED};
    struct iovec room = {slot->buffer, 2 * BLOCK};
    while ((slot->began = now()) < until && !(once && next_piece >= SMALL)) {
        slot->piece = next_piece++ % SMALL;
        snprintf(slot->path, sizeof slot->path, "%s/small/%05u", dir, (unsigned)slot->piece);
        int fd = syscall(SYS_openat2, AT_FDCWD, slot->path, &how, sizeof how);
        // The kernel's name cache refuses a lookup beside a concurrent rename.
        if (fd < 0) fd = open(slot->path, O_RDONLY | O_CLOEXEC);
        ssize_t length = preadv2(fd, &room, 1, 0, RWF_NOWAIT);
        if (length < 0) length = pread(fd, slot->buffer, 2 * BLOCK, 0);
        close(fd);
        check(length == SMALL_LENGTH && first(slot->buffer) == word(slot->piece, 0), "other bytes than in the file");
        count(slot->began);
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
static unsigned have, left;

static void ask(void) { PREPARE(0, ASKED, recv, peer, asked + have, 8 - have, 0); }

static void complete(enum op op, unsigned at, int result) {
    struct slot *slot = &slots[at];
    if (result < 0 && op != ASKED) {
        errno = -result;
        die("an operation");
    }
    switch (op) {
    case OPENED:
        break;
    case IO:
        if (row == OPEN) {
            check(result == SMALL_LENGTH && first(slot->buffer) == word(slot->piece, 0), "other bytes than in the file");
        } else if (row == RANDOM || row == READ) {
            unsigned size = row == RANDOM ? BLOCK : LONG;
            check(result == (int)size && first(slot->buffer) == word(SMALL, slot->piece * size / 8), "other bytes than in the file");
            count(slot->began);
            start(at);
        } else if (row == APPEND) {
            check(result == RECORD, "a short write");
            written[written_count++] = at;
            commit();
        } else {
            check(result == LONG, "a short write");
            count(slot->began);
            start(at);
        }
        break;
    case CLOSED:
        count(slot->began);
        start(at);
        break;
    case SYNCED:
        syncing = false;
        for (unsigned i = 0; i < in_sync_count; i++) {
            count(slots[in_sync[i]].began);
            start(in_sync[i]);
        }
        commit();
        break;
    case ASKED:
        if (result <= 0) {
            stopped = true;
            running--;
        } else if ((have += result) < 8) {
            ask();
        } else {
            PREPARE(0, ANSWERED, read, big, answer, BLOCK, first(asked) * BLOCK);
            left = have = 0;
        }
        break;
    case ANSWERED:
        if (left == 0) {
            check(result == BLOCK, "a short read");
            left = BLOCK;
        } else {
            left -= result;
        }
        if (left == 0)
            ask();
        else
            PREPARE(0, ANSWERED, send, peer, answer + BLOCK - left, left, MSG_NOSIGNAL);
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

static void all(uint64_t time) {
    until = now() + time;
    next_piece = 0;
    times_count = 0;
    if (calls) {
        open_by_calls();
        return;
    }
    running = tasks;
    for (unsigned at = 0; at < tasks; at++) start(at);
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

static double at(double quantile) {
    size_t index = times_count * quantile;
    if (index >= times_count) index = times_count - 1;
    return times_count ? times[index] / 1e3 : 0;
}

static double of(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

/// Runs a read or write of `check` to its end.
static int one(struct io_uring_sqe *sqe) {
    (void)sqe;
    io_uring_submit_and_wait(&ring, 1);
    struct io_uring_cqe *cqe;
    if (io_uring_wait_cqe(&ring, &cqe)) die("io_uring_enter");
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

#define ONE(how, ...) ({ struct io_uring_sqe *sqe = entry(0, IO); io_uring_prep_##how(sqe, __VA_ARGS__); one(sqe); })

static uint64_t check_all(void) {
    uint64_t total = 0;
    char *buffer = aligned(LONG), path[512];
    for (unsigned number = 0; number < SMALL; number += 100) {
        snprintf(path, sizeof path, "%s/small/%05u", dir, number);
        int fd = ONE(openat, AT_FDCWD, path, O_RDONLY, 0);
        check(ONE(read, fd, buffer, 2 * BLOCK, 0) == SMALL_LENGTH, "a small file");
        total += sum(buffer, SMALL_LENGTH);
        ONE(close, fd);
    }
    big = open_file("big", O_RDONLY);
    for (int block = 511; block >= 0; block--) {
        check(ONE(read, big, buffer, BLOCK, (uint64_t)block * BLOCK) == BLOCK, "a block");
        total += sum(buffer, BLOCK);
    }
    for (uint64_t piece = 0; piece < 8; piece++) {
        check(ONE(read, big, buffer, LONG, piece * LONG) == LONG, "a piece");
        total += sum(buffer, LONG);
    }
    int out = open_file("out", O_WRONLY | O_CREAT);
    for (uint64_t piece = 0; piece < 8; piece++) check(ONE(write, out, buffer, LONG, piece * LONG) == LONG, "a write");
    check(ONE(fsync, out, IORING_FSYNC_DATASYNC) == 0, "a sync");
    int log = open_file("log", O_WRONLY | O_CREAT | O_APPEND);
    char *record = pattern(RECORD);
    for (int n = 0; n < 20; n++) {
        check(ONE(write, log, record, RECORD, 0) == RECORD, "an append");
        check(ONE(fsync, log, IORING_FSYNC_DATASYNC) == 0, "a sync");
    }
    return total;
}

int main(int argc, char **argv) {
    check(argc > 1, "usage: ROW --dir DIR [--seconds S] [--tasks N] [--direct] [--once] [--gather N] [--calls]");
    for (row = OPEN; row <= CHECK && strcmp(argv[1], rows[row]); row++) {}
    check(row <= CHECK, "no such row");
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
    check(tasks > 0 && tasks <= MOST, "too many tasks");
    check(!calls || row == OPEN, "--calls is of the row open");
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    if ((errno = -io_uring_queue_init_params(1024, &ring, &params))) die("io_uring_setup");
    io_uring_register_ring_fd(&ring);
    if (row == OPEN && io_uring_register_files_sparse(&ring, MOST)) die("io_uring_register");
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
    if (!once && row != MIXED && row != CHECK) all(100000000);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    uint64_t began = now();
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
        all(seconds * 1e9);
    }
    double took = (now() - began) / 1e9;
    getrusage(RUSAGE_SELF, &after);
    qsort(times, times_count, sizeof *times, by_size);
    printf("{\"ops\":%zu,\"seconds\":%.6f,\"p50\":%.2f,\"p99\":%.2f,\"p999\":%.2f,\"user\":%.6f,\"sys\":%.6f,\"sum\":%llu}\n", times_count, took,
           at(0.5), at(0.99), at(0.999), of(after.ru_utime) - of(before.ru_utime), of(after.ru_stime) - of(before.ru_stime),
           (unsigned long long)total);
}
