// The common part of the two C servers: command line, listening socket, reply, and the search for
// ends of requests.
//
// The servers are the floor of the plaintext benchmark, not models of a server: a request ends at
// the first empty line, and its content is ignored. TCP_NODELAY is set on the listening socket;
// connections inherit it.
#pragma once

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REPLY "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!"
enum { REPLY_LEN = sizeof(REPLY) - 1, MAX_REPLIES = 128, MAX_FDS = 65536 };

// MAX_REPLIES copies of the reply: replies to pipelined requests are sent from here without a
// copy.
static char replies[MAX_REPLIES * REPLY_LEN];

// Length of the part of an empty line ("\r\n\r\n") that ended the last read, 0 to 3 bytes, by
// descriptor.
static unsigned char matched[MAX_FDS];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static unsigned step(unsigned state, char byte) {
    if (byte == '\r') return state == 2 ? 3 : 1;
    if (byte == '\n' && (state == 1 || state == 3)) return state + 1;
    return 0;
}

// Returns the number of requests that end in these bytes. `state` carries over between the reads of
// a connection.
static unsigned requests_in(const char *cursor, size_t length, unsigned char *state) {
    const char *end = cursor + length;
    unsigned count = 0, s = *state;
    while (s != 0 && cursor < end) {
        s = step(s, *cursor++);
        if (s == 4) {
            count++;
            s = 0;
        }
    }
    if (s == 0) {
        const char *separator;
        while ((separator = memmem(cursor, end - cursor, "\r\n\r\n", 4))) {
            count++;
            cursor = separator + 4;
        }
        if (end - cursor > 3) cursor = end - 3;
        while (cursor < end) s = step(s, *cursor++);
    }
    *state = s;
    return count;
}

// Parses the command line, listens, and prints the address. Returns the socket; `*variant` is the
// value of --variant.
static int start(int argc, char **argv, const char **variant) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (argc < 2 || strcmp(argv[1], "plaintext") || argc % 2) {
        fprintf(stderr, "usage: plaintext [--variant NAME] [--listen IPV4:PORT]\n");
        exit(2);
    }
    for (int i = 2; i < argc; i += 2) {
        char *colon = strchr(argv[i + 1], ':');
        if (!strcmp(argv[i], "--variant")) {
            *variant = argv[i + 1];
        } else if (!strcmp(argv[i], "--listen") && colon) {
            *colon = 0;
            address.sin_port = htons(atoi(colon + 1));
            if (inet_pton(AF_INET, argv[i + 1], &address.sin_addr) != 1) die("--listen");
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    for (int i = 0; i < MAX_REPLIES; i++) memcpy(replies + i * REPLY_LEN, REPLY, REPLY_LEN);
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
