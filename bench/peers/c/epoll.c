// Plaintext server over epoll: level-triggered, one read and one write per event, one thread.
#include "plaintext.h"
#include <errno.h>
#include <sys/epoll.h>

int main(int argc, char **argv) {
    const char *variant = "default";
    int listener = start(argc, argv, &variant);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[512];
    if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event)) die("epoll");
    static char buffer[16 * 1024];
    for (;;) {
        int ready = epoll_wait(poll, events, 512, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                // Blocking sockets: a client that never reads would stop the server. These clients
                // read.
                fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                if (fd < 0) continue;
                if (fd >= MAX_FDS) {
                    close(fd);
                    continue;
                }
                matched[fd] = 0;
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
                if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) close(fd);
                continue;
            }
            ssize_t length = read(fd, buffer, sizeof buffer);
            if (length <= 0) {
                close(fd);
                continue;
            }
            unsigned count = requests_in(buffer, length, &matched[fd]);
            while (count > 0) {
                unsigned batch = count < MAX_REPLIES ? count : MAX_REPLIES;
                size_t unsent_bytes = (size_t)batch * REPLY_LEN;
                const char *next_byte = replies;
                while (unsent_bytes > 0) {
                    ssize_t sent = send(fd, next_byte, unsent_bytes, MSG_NOSIGNAL);
                    if (sent < 0) break;
                    next_byte += sent;
                    unsent_bytes -= sent;
                }
                // The next read sees the end of a broken connection.
                count = unsent_bytes > 0 ? 0 : count - batch;
            }
        }
    }
}
