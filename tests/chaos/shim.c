/* Preloaded into a process: stops it, or fails, at the n-th call that changes files in a folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { BEFORE, AFTER, FULL }; /* killed before the call; after it, or in the middle of a write; disk full from now on */

static char folder[4096];
static long left, count;
static int mode;

void chaos_arm(const char *path, long calls, int how) {
    snprintf(folder, sizeof folder, "%s", path);
    left = calls;
    mode = how;
    count = 0;
}

long chaos_count(void) { return count; }

static int inside(const char *path) { return folder[0] && path && !strncmp(path, folder, strlen(folder)); }

static int inside_fd(int fd) {
    char link[64], path[4096];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return inside(path);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Whether this call is the one: 1 for killed after it, 2 for no space left. */
static int here(int ours, int takes_space) {
    if (!ours) return 0;
    count++;
    if (left <= 0) return 0;
    if (mode == FULL) {
        if (left > 1) left--;
        return left == 1 && takes_space ? 2 : 0;
    }
    if (--left) return 0;
    if (mode == BEFORE) die();
    return 1;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define CHANGE(type, name, ours, space, params, args, ...)                 \
    type name params {                                                     \
        int what = here(ours, space);                                      \
        if (what == 2) { errno = ENOSPC; return -1; }                      \
        type result = REAL(type, name, __VA_ARGS__) args;                  \
        if (what == 1) die();                                              \
        return result;                                                     \
    }

CHANGE(int, rename, inside(b), 0, (const char *a, const char *b), (a, b), const char *, const char *)
CHANGE(int, unlink, inside(a), 0, (const char *a), (a), const char *)
CHANGE(int, rmdir, inside(a), 0, (const char *a), (a), const char *)
CHANGE(int, mkdir, inside(a), 1, (const char *a, mode_t m), (a, m), const char *, mode_t)
CHANGE(int, fsync, inside_fd(fd), 1, (int fd), (fd), int)
CHANGE(int, ftruncate, inside_fd(fd), 0, (int fd, off_t size), (fd, size), int, off_t)
CHANGE(int, ftruncate64, inside_fd(fd), 0, (int fd, off64_t size), (fd, size), int, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    int what = here(inside_fd(fd), 1);
    if (what == 2) { errno = ENOSPC; return -1; }
    ssize_t result = REAL(ssize_t, write, int, const void *, size_t)(fd, data, what == 1 ? (size + 1) / 2 : size);
    if (what == 1) die();
    return result;
}

#define OPEN(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        va_list rest;                                                                     \
        va_start(rest, flags);                                                            \
        mode_t m = va_arg(rest, mode_t);                                                  \
        va_end(rest);                                                                     \
        int what = here(inside(path) && (flags & (O_CREAT | O_TRUNC)), flags & O_CREAT);  \
        if (what == 2) { errno = ENOSPC; return -1; }                                     \
        int result = REAL(int, name, const char *, int, ...)(path, flags, m);             \
        if (what == 1) die();                                                             \
        return result;                                                                    \
    }

OPEN(open)
OPEN(open64)
