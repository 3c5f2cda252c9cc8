/* Preloaded into a process: stops it, or fails, at the n-th call that changes files in a folder; sets its clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* killed before the call; after it, or in the middle of a write; from now on the disk is full; it cannot be written;
   the folder is moved away */
enum { BEFORE, AFTER, FULL, READ_ONLY, GONE };
enum { KILLED_AFTER = -1 };

static char folder[4096];
static long left, count, shift;
static int mode;

void chaos_arm(const char *path, long calls, int how) {
    snprintf(folder, sizeof folder, "%s", path);
    left = calls;
    mode = how;
    count = 0;
}

long chaos_count(void) { return count; }

void chaos_set_clock(long seconds) { shift = seconds; }

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

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static void move_away(void) {
    char away[4200];
    snprintf(away, sizeof away, "%s-gone", folder);
    REAL(int, rename, const char *, const char *)(folder, away);
}

/* What happens to this call: an error, KILLED_AFTER, or nothing. */
static int here(int ours, int takes_space) {
    if (!ours) return 0;
    count++;
    if (left <= 0) return 0;
    if (mode == FULL || mode == READ_ONLY) {
        if (left > 1) {
            left--;
            return 0;
        }
        return mode == READ_ONLY ? EROFS : takes_space ? ENOSPC : 0;
    }
    if (--left) return 0;
    if (mode == BEFORE) die();
    if (mode == GONE) move_away();
    return mode == AFTER ? KILLED_AFTER : 0;
}

#define CHANGE(type, name, ours, space, params, args, ...)                 \
    type name params {                                                     \
        int what = here(ours, space);                                      \
        if (what > 0) { errno = what; return -1; }                         \
        type result = REAL(type, name, __VA_ARGS__) args;                  \
        if (what == KILLED_AFTER) die();                                   \
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
    if (what > 0) { errno = what; return -1; }
    size_t part = what == KILLED_AFTER ? (size + 1) / 2 : size;
    ssize_t result = REAL(ssize_t, write, int, const void *, size_t)(fd, data, part);
    if (what == KILLED_AFTER) die();
    return result;
}

#define OPEN(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        va_list rest;                                                                     \
        va_start(rest, flags);                                                            \
        mode_t m = va_arg(rest, mode_t);                                                  \
        va_end(rest);                                                                     \
        int what = here(inside(path) && (flags & (O_CREAT | O_TRUNC)), flags & O_CREAT);  \
        if (what > 0) { errno = what; return -1; }                                        \
        int result = REAL(int, name, const char *, int, ...)(path, flags, m);             \
        if (what == KILLED_AFTER) die();                                                  \
        return result;                                                                    \
    }

OPEN(open)
OPEN(open64)

int clock_gettime(clockid_t clock, struct timespec *found) {
    int result = REAL(int, clock_gettime, clockid_t, struct timespec *)(clock, found);
    if (clock == CLOCK_REALTIME) found->tv_sec += shift;
    return result;
}

int gettimeofday(struct timeval *found, void *zone) {
    int result = REAL(int, gettimeofday, struct timeval *, void *)(found, zone);
    found->tv_sec += shift;
    return result;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
