// Plaintext server over io_uring without a runtime: multishot accept and recv, a ring of provided
// buffers, SINGLE_ISSUER | DEFER_TASKRUN, and sends without completions. Variant `direct`: direct
// descriptors.
//
// A send is not awaited. Replies keep their order while they fit the socket's send buffer, which
// holds for clients that read.
#include "plaintext.h"
#include <errno.h>
#include <liburing.h>
#include <sys/mman.h>

enum { BUFFERS = 4096, BUFFER_LEN = 2048, GROUP = 0, SLOTS = 4096 };
enum op { ACCEPT, RECV, SEND, CLOSE };

static struct io_uring ring;
static struct io_uring_buf_ring *buffers;
static char *memory;
static bool direct;

static struct io_uring_sqe *sqe(void) {
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    if (!entry) {
        io_uring_submit(&ring);
        entry = io_uring_get_sqe(&ring);
        if (!entry) die("submission queue");
    }
    return entry;
}

static void tag(struct io_uring_sqe *entry, enum op op, int fd, unsigned flags) {
    entry->flags |= flags | (direct && op != ACCEPT && op != CLOSE ? IOSQE_FIXED_FILE : 0);
    io_uring_sqe_set_data64(entry, (uint64_t)fd << 8 | op);
}

static void arm_accept(int listener) {
    struct io_uring_sqe *entry = sqe();
    if (direct)
        io_uring_prep_multishot_accept_direct(entry, listener, NULL, NULL, 0);
    else
        io_uring_prep_multishot_accept(entry, listener, NULL, NULL, SOCK_CLOEXEC);
    tag(entry, ACCEPT, listener, 0);
}

static void arm_recv(int fd) {
    struct io_uring_sqe *entry = sqe();
    io_uring_prep_recv_multishot(entry, fd, NULL, 0, 0);
    entry->buf_group = GROUP;
    tag(entry, RECV, fd, IOSQE_BUFFER_SELECT);
}

static void reply(int fd, unsigned count) {
    while (count > 0) {
        unsigned batch = count < MAX_REPLIES ? count : MAX_REPLIES;
        struct io_uring_sqe *entry = sqe();
        io_uring_prep_send(entry, fd, replies, (size_t)batch * REPLY_LEN, MSG_WAITALL | MSG_NOSIGNAL);
        tag(entry, SEND, fd, IOSQE_CQE_SKIP_SUCCESS);
        count -= batch;
    }
}

static void hang_up(int fd) {
    struct io_uring_sqe *entry = sqe();
    if (direct)
        io_uring_prep_close_direct(entry, fd);
    else
        io_uring_prep_close(entry, fd);
    tag(entry, CLOSE, fd, IOSQE_CQE_SKIP_SUCCESS);
}

static void set_up(void) {
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
        .cq_entries = 16384,
    };
    errno = -io_uring_queue_init_params(4096, &ring, &params);
    if (errno) die("io_uring (needs Linux 6.1 and the right to use it)");
    io_uring_register_ring_fd(&ring);
    size_t size = BUFFERS * sizeof(struct io_uring_buf);
    buffers = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    memory = mmap(NULL, (size_t)BUFFERS * BUFFER_LEN, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (buffers == MAP_FAILED || memory == MAP_FAILED) die("mmap");
    struct io_uring_buf_reg reg = {.ring_addr = (uintptr_t)buffers, .ring_entries = BUFFERS, .bgid = GROUP};
    errno = -io_uring_register_buf_ring(&ring, &reg, 0);
    if (errno) die("buffer ring");
    io_uring_buf_ring_init(buffers);
    for (int i = 0; i < BUFFERS; i++)
        io_uring_buf_ring_add(buffers, memory + i * BUFFER_LEN, BUFFER_LEN, i, BUFFERS - 1, i);
    io_uring_buf_ring_advance(buffers, BUFFERS);
    if (direct) {
        errno = -io_uring_register_files_sparse(&ring, SLOTS);
        if (errno) die("direct descriptors");
    }
}

static void received(struct io_uring_cqe *cqe, int fd) {
    unsigned count = 0;
    if (cqe->flags & IORING_CQE_F_BUFFER) {
        unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
        char *buffer = memory + (size_t)id * BUFFER_LEN;
        if (cqe->res > 0) count = requests_in(buffer, cqe->res, &matched[fd]);
        io_uring_buf_ring_add(buffers, buffer, BUFFER_LEN, id, BUFFERS - 1, 0);
        io_uring_buf_ring_advance(buffers, 1);
    }
    reply(fd, count);
    if (cqe->res <= 0 && cqe->res != -ENOBUFS)
        hang_up(fd);
    else if (!(cqe->flags & IORING_CQE_F_MORE))
        arm_recv(fd);
}

int main(int argc, char **argv) {
    const char *variant = "default";
    int listener = start(argc, argv, &variant);
    direct = !strcmp(variant, "direct");
    set_up();
    arm_accept(listener);
    for (;;) {
        int result = io_uring_submit_and_wait(&ring, 1);
        if (result < 0 && result != -EINTR) {
            errno = -result;
            die("io_uring_enter");
        }
        unsigned head, seen = 0;
        struct io_uring_cqe *cqe;
        io_uring_for_each_cqe(&ring, head, cqe) {
            seen++;
            int fd = cqe->user_data >> 8;
            switch ((enum op)(cqe->user_data & 0xff)) {
            case ACCEPT:
                if (cqe->res >= 0 && cqe->res < MAX_FDS) {
                    matched[cqe->res] = 0;
                    arm_recv(cqe->res);
                } else if (cqe->res >= 0) {
                    hang_up(cqe->res);
                }
                if (!(cqe->flags & IORING_CQE_F_MORE)) arm_accept(listener);
                break;
            case RECV:
                received(cqe, fd);
                break;
            case SEND:
            case CLOSE:
                // Only failures complete here. A failed connection also ends its recv.
                break;
            }
        }
        io_uring_cq_advance(&ring, seen);
    }
}
