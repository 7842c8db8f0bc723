// Spin server that preempts by two ideas alone. A signal whose handler waits suspends a long poll,
// and the suspended owner of the ring continues to serve the ring from that handler. A yardstick
// for the price of preemption: no levels, no timers, no HTTP, no rights.
//
//   usage: preempt spin [--variant on|off] [--listen IPV4:PORT]
//
// Threads, all on one CPU. One thread is *current*: only it takes completions and polls requests.
//
//   owner    made the ring; current until it is suspended
//   spare    waits; becomes current when the current thread is suspended in a poll
//   watcher  sleeps on an eventfd that completions signal while a poll runs
//
//                    poll has run for its quantum, and a completion waits
//   current, polling ────────────────────────────────────────────────────▶ suspended, at the tail
//        ▲                          watcher: signal                            │
//        └──────────────────────────────────────────────────────────────────────┘
//                 the current thread finds no completion and gives way
//
// A poll has the quantum the first time, and PRICE, the cost of a suspension, after each
// resumption: a request that was suspended is long, and makes room for fresh ones at once. The work
// of a request is a count of steps, calibrated at the start. A loop that looks at a clock would
// enter the kernel, which may switch threads there.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 64, BUFFERS = 1024, BUFFER_LEN = 2048, FRAME = 24, MAX_FDS = 65536 };
enum { QUANTUM_NS = 150000, PRICE_NS = 20000, SLICE_NS = 100000 };
static const uint64_t ACCEPT = ~0ULL;

// A thread. The thread itself writes the fields; other threads end its waits by `go` and `resume`.
struct thread {
    pid_t tid;
    int go;            // futex: a spare is to be current
    int resume;        // futex: a suspended thread is to go on
    int polling;       // the poll may be suspended
    uint64_t start_time;    // begin of the poll, or its last resumption, ns
    bool was_suspended;
} __attribute__((aligned(128)));

static struct thread threads[THREADS];
static __thread int self;
// Index of the current thread. Written by the current thread, and by the watcher while the current
// thread waits in its handler.
static int current;
// The words below belong to the current thread, and to the watcher during a suspension.
static int spares[THREADS], spare_count;
static int suspended[THREADS];
static unsigned suspended_head, suspended_tail;
static bool spare_is_idle;  // the current thread is a spare that found nothing to do

static struct io_uring ring;
static struct io_uring_buf_ring *buffers;
static char *memory;
static int arrivals = -1;  // the eventfd
static bool is_preemptive = true;
static int handler_answer;  // futex: the handler's answer to the watcher
enum { NONE, WAITS, NOT_POLLING };

// The incomplete frame at the end of a connection's last buffer.
static struct { unsigned char bytes[FRAME], length; } carried[MAX_FDS];
static int to_arm[MAX_FDS], to_arm_count;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t clock_ns(clockid_t id) {
    struct timespec time;
    clock_gettime(id, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void futex_wait(int *word, int value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

static int load(int *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

static void store(int *word, int value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

static void await_and_clear(int *word) {
    while (!load(word)) futex_wait(word, 0);
    store(word, 0);
}

static void end_wait(int *word) {
    store(word, 1);
    futex_wake(word);
}

// --- The work of a request: a fixed number of steps, without a system call.

static double steps_per_ns = 1;
static volatile uint64_t sink;

static void __attribute__((noinline)) steps(uint64_t count) {
    uint64_t x = count | 1;
    for (uint64_t i = 0; i < count; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        __asm__ volatile("" ::"r"(x));
    }
    sink = x;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void calibrate(void) {
    enum { RUNS = 15, STEPS = 300000 };
    double rates[RUNS];
    for (int i = 0; i < RUNS; i++) {
        uint64_t start_time = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        steps(STEPS);
        rates[i] = STEPS / (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start_time);
    }
    qsort(rates, RUNS, sizeof *rates, by_size);
    steps_per_ns = rates[RUNS / 2];
}

// --- The ring, as far as preemption needs it.

static bool has_completions(void) {
    return __atomic_load_n(ring.cq.ktail, __ATOMIC_ACQUIRE) != *ring.cq.khead;
}

static bool something_waits(void) {
    return has_completions() ||
           (__atomic_load_n(ring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN);
}

// Enables or disables the eventfd. It is enabled only while a poll runs, because completions need
// no watcher otherwise.
static void signal_arrivals(bool wanted) {
    unsigned flags = *ring.cq.kflags;
    flags = wanted ? flags & ~IORING_CQ_EVENTFD_DISABLED : flags | IORING_CQ_EVENTFD_DISABLED;
    __atomic_store_n(ring.cq.kflags, flags, __ATOMIC_SEQ_CST);
}

static void tell_watcher(void) {
    uint64_t one = 1;
    if (something_waits() && write(arrivals, &one, sizeof one) < 0 && errno != EAGAIN)
        die("eventfd");
}

static void enter_and_wait(unsigned completions, sigset_t *mask) {
    syscall(SYS_io_uring_enter, ring.ring_fd, 0, completions, IORING_ENTER_GETEVENTS, mask, 8);
}

// The owner serves the ring while another thread is current, until the owner is resumed.
static void serve_ring_until_resumed(void) {
    sigset_t mask;
    sigfillset(&mask);
    sigdelset(&mask, SIGUSR2);
    sigdelset(&mask, SIGTERM);
    struct thread *own = &threads[0];
    while (!load(&own->resume)) {
        enter_and_wait(1, &mask);
        if (has_completions() && spare_is_idle) {
            spare_is_idle = false;
            end_wait(&threads[load(&current)].go);
        }
        if (has_completions() && !load(&own->resume)) {
            // The current thread takes the completions; until then a wait on the ring would return
            // at once.
            struct timespec pause = {.tv_nsec = 50000};
            ppoll(NULL, 0, &pause, &mask);
        }
    }
    store(&own->resume, 0);
}

// --- Suspension.

static void on_suspend(int signal) {
    (void)signal;
    int error = errno;
    struct thread *own = &threads[self];
    if (!own->polling || load(&current) != self) {
        store(&handler_answer, NOT_POLLING);
        futex_wake(&handler_answer);
        errno = error;
        return;
    }
    // Completions that wait as task work become entries, which the next current thread reads.
    if (self == 0) enter_and_wait(0, NULL);
    store(&handler_answer, WAITS);
    futex_wake(&handler_answer);
    if (self == 0)
        serve_ring_until_resumed();
    else
        await_and_clear(&own->resume);
    own->was_suspended = true;
    own->start_time = clock_ns(CLOCK_MONOTONIC);
    tell_watcher();
    errno = error;
}

static void on_resume(int signal) { (void)signal; }

static int pop_suspended(void) { return suspended[suspended_head++ % THREADS]; }

static void push_suspended(int index) { suspended[suspended_tail++ % THREADS] = index; }

// Makes a suspended thread the current one.
static void resume(int index) {
    store(&current, index);
    signal_arrivals(true);
    store(&threads[index].resume, 1);
    if (index == 0)
        syscall(SYS_tgkill, getpid(), threads[0].tid, SIGUSR2);
    else
        futex_wake(&threads[index].resume);
}

static void *watch(void *unused) {
    (void)unused;
    self = -1;
    prctl(PR_SET_TIMERSLACK, 1);
    // With a short slice the watcher runs soon after it wakes.
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } slice = {.size = sizeof slice, .runtime = SLICE_NS};
    syscall(SYS_sched_setattr, 0, &slice, 0);
    struct pollfd event = {.fd = arrivals, .events = POLLIN};
    struct timespec timeout, *timer = NULL;
    for (;;) {
        uint64_t count;
        if (ppoll(&event, 1, timer, NULL) > 0 && read(arrivals, &count, sizeof count) < 0)
            continue;
        timer = NULL;
        int index = load(&current);
        struct thread *thread = &threads[index];
        uint64_t start_time = thread->start_time;
        if (!load(&thread->polling) || !start_time) continue;
        uint64_t may_run = thread->was_suspended ? PRICE_NS : QUANTUM_NS;
        uint64_t has_run = clock_ns(CLOCK_MONOTONIC) - start_time;
        if (has_run < may_run) {
            timeout.tv_nsec = may_run - has_run < 2000 ? 2000 : may_run - has_run;
            timer = &timeout;
            continue;
        }
        if (!something_waits() || !spare_count) continue;
        store(&handler_answer, NONE);
        syscall(SYS_tgkill, getpid(), thread->tid, SIGUSR1);
        while (load(&handler_answer) == NONE) futex_wait(&handler_answer, NONE);
        if (load(&handler_answer) == NOT_POLLING) continue;
        push_suspended(index);
        int next = spares[--spare_count];
        store(&current, next);
        signal_arrivals(false);
        end_wait(&threads[next].go);
    }
    return NULL;
}

// --- Requests.

static void poll_request(int fd, const unsigned char *frame) {
    struct thread *own = &threads[self];
    uint64_t ns;
    memcpy(&ns, frame, sizeof ns);
    own->was_suspended = false;
    own->start_time = clock_ns(CLOCK_MONOTONIC);
    store(&own->polling, 1);
    if (is_preemptive) {
        signal_arrivals(true);
        tell_watcher();
    }
    steps(ns * steps_per_ns);
    store(&own->polling, 0);
    own->start_time = 0;
    if (is_preemptive) signal_arrivals(false);
    if (send(fd, frame, FRAME, MSG_NOSIGNAL) != FRAME) shutdown(fd, SHUT_RDWR);
}

static void take(struct io_uring_cqe *entry) {
    uint64_t data = entry->user_data;
    int result = entry->res, flags = entry->flags, fd = (int)data;
    io_uring_cq_advance(&ring, 1);
    if (data == ACCEPT) {
        if (result >= MAX_FDS) close(result);
        else if (result >= 0) {
            carried[result].length = 0;
            to_arm[to_arm_count++] = result;
        }
        return;
    }
    if (result == -ENOBUFS) {
        to_arm[to_arm_count++] = fd;
        return;
    }
    if (result <= 0) {
        close(fd);
        return;
    }
    // All bytes are copied before the first poll, because another thread may take the rest
    // meanwhile.
    unsigned char bytes[FRAME + BUFFER_LEN];
    unsigned length = carried[fd].length, buffer = flags >> IORING_CQE_BUFFER_SHIFT;
    memcpy(bytes, carried[fd].bytes, length);
    memcpy(bytes + length, memory + buffer * BUFFER_LEN, result);
    length += result;
    io_uring_buf_ring_add(buffers, memory + buffer * BUFFER_LEN, BUFFER_LEN, buffer,
                          io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(buffers, 1);
    if (!(flags & IORING_CQE_F_MORE)) to_arm[to_arm_count++] = fd;
    carried[fd].length = length % FRAME;
    memcpy(carried[fd].bytes, bytes + length - length % FRAME, length % FRAME);
    for (unsigned offset = 0; offset + FRAME <= length; offset += FRAME) poll_request(fd, bytes + offset);
}

static void *work_as_spare(void *index) {
    self = (int)(intptr_t)index;
    threads[self].tid = gettid();
    for (;;) {
        await_and_clear(&threads[self].go);
        while (load(&current) == self) {
            struct io_uring_cqe *entry;
            if (!io_uring_peek_cqe(&ring, &entry)) {
                take(entry);
            } else if (suspended_head != suspended_tail) {
                int next = pop_suspended();
                spares[spare_count++] = self;
                resume(next);
            } else {
                spare_is_idle = true;
                if (!has_completions()) break;
                spare_is_idle = false;
            }
        }
    }
    return NULL;
}

static void work_as_owner(void) {
    for (;;) {
        while (to_arm_count) {
            int fd = to_arm[--to_arm_count];
            struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
            if (!entry) die("submission queue");
            io_uring_prep_recv_multishot(entry, fd, NULL, 0, 0);
            entry->flags |= IOSQE_BUFFER_SELECT;
            io_uring_sqe_set_data64(entry, fd);
        }
        struct io_uring_cqe *completion;
        if (!io_uring_peek_cqe(&ring, &completion)) {
            if (*ring.sq.kflags & IORING_SQ_TASKRUN) io_uring_get_events(&ring);
            take(completion);
        } else if (suspended_head != suspended_tail) {
            io_uring_submit(&ring);
            // The owner queues behind the suspended polls.
            int next = pop_suspended();
            push_suspended(0);
            resume(next);
            serve_ring_until_resumed();
        } else {
            io_uring_submit_and_wait(&ring, 1);
        }
    }
}

// --- The start.

static int listen_at(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool is_valid = argc >= 2 && !strcmp(argv[1], "spin") && argc % 2 == 0;
    for (int i = 2; is_valid && i < argc; i += 2) {
        char *colon = strchr(argv[i + 1], ':');
        if (!strcmp(argv[i], "--variant")) {
            is_preemptive = strcmp(argv[i + 1], "off");
        } else if (!strcmp(argv[i], "--listen") && colon) {
            *colon = 0;
            address.sin_port = htons(atoi(colon + 1));
            is_valid = inet_pton(AF_INET, argv[i + 1], &address.sin_addr) == 1;
        } else {
            is_valid = false;
        }
    }
    if (!is_valid) {
        fprintf(stderr, "usage: preempt spin [--variant on|off] [--listen IPV4:PORT]\n");
        exit(2);
    }
    int one = 1, sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof address;
    if (sock < 0 || setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
        bind(sock, (struct sockaddr *)&address, size) || listen(sock, 1024) ||
        getsockname(sock, (struct sockaddr *)&address, &size))
        die("cannot listen");
    printf("listening on %s:%d\n", inet_ntoa(address.sin_addr), ntohs(address.sin_port));
    fflush(stdout);
    return sock;
}

static void make_ring(void) {
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE,
        .cq_entries = 8192,
    };
    int error = io_uring_queue_init_params(1024, &ring, &params);
    if (error) {
        errno = -error;
        die("io_uring");
    }
    buffers = aligned_alloc(4096, BUFFERS * sizeof(struct io_uring_buf));
    memory = malloc((size_t)BUFFERS * BUFFER_LEN);
    if (!buffers || !memory) die("buffers");
    io_uring_buf_ring_init(buffers);
    struct io_uring_buf_reg region = {.ring_addr = (uintptr_t)buffers, .ring_entries = BUFFERS};
    if (io_uring_register_buf_ring(&ring, &region, 0)) die("buffer ring");
    for (int i = 0; i < BUFFERS; i++)
        io_uring_buf_ring_add(buffers, memory + i * BUFFER_LEN, BUFFER_LEN, i,
                              io_uring_buf_ring_mask(BUFFERS), i);
    io_uring_buf_ring_advance(buffers, BUFFERS);
}

static void start_threads(void) {
    struct sigaction suspend = {.sa_handler = on_suspend}, resumed = {.sa_handler = on_resume};
    sigfillset(&suspend.sa_mask);
    sigdelset(&suspend.sa_mask, SIGTERM);
    sigaction(SIGUSR1, &suspend, NULL);
    sigaction(SIGUSR2, &resumed, NULL);
    // SIGUSR2 ends a wait of the owner; it is blocked everywhere else.
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    arrivals = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (arrivals < 0 || io_uring_register_eventfd(&ring, arrivals)) die("eventfd");
    signal_arrivals(false);
    pthread_t thread;
    for (intptr_t i = 1; i < THREADS; i++) {
        if (pthread_create(&thread, NULL, work_as_spare, (void *)i)) die("thread");
        spares[spare_count++] = i;
        while (!*(volatile pid_t *)&threads[i].tid) usleep(20);
    }
    if (pthread_create(&thread, NULL, watch, NULL)) die("thread");
}

int main(int argc, char **argv) {
    calibrate();
    threads[0].tid = gettid();
    make_ring();
    int listener = listen_at(argc, argv);
    if (is_preemptive) start_threads();
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_multishot_accept(entry, listener, NULL, NULL, SOCK_CLOEXEC);
    io_uring_sqe_set_data64(entry, ACCEPT);
    work_as_owner();
}
