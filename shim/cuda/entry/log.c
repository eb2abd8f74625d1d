/*
 * Writes one line to standard error when something is refused, so that `docker logs` shows why.
 *
 * It uses write(2) and a buffer on the stack: hooks neither allocate nor touch the program's stdio.
 * It writes at most one line per kind in five seconds; none with CGPU_LOG=off; and none if
 * descriptor 2 is a different file than when the library was loaded. A program that has redirected
 * its errors looks the same as one that has opened a database under that number.
 */
#define _GNU_SOURCE /* secure_getenv */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "entry/shim.h"
#include "mapped_limits.h"

enum { LINE_SIZE = 512, INTERVAL_SECONDS = 5 };

struct line {
    size_t length;
    char text[LINE_SIZE];
};

static bool silent;
static struct stat error_at_load;
static int64_t last_second[CGPU_LOG_KINDS];

void
cgpu_log_setup(void)
{
    const char *choice = secure_getenv("CGPU_LOG");
    silent =
        (choice != NULL && strcmp(choice, "off") == 0) || fstat(STDERR_FILENO, &error_at_load) != 0;
}

/*
 * Whether standard error is the same file as before. A program that closes it may open a file of
 * its own under that number.
 */
static bool
is_still_there(void)
{
    struct stat now;
    return fstat(STDERR_FILENO, &now) == 0 && now.st_dev == error_at_load.st_dev &&
           now.st_ino == error_at_load.st_ino;
}

static void
add(struct line *line, const char *text)
{
    size_t length = strlen(text);
    size_t room = LINE_SIZE - 1 - line->length;
    length = length < room ? length : room;
    memcpy(line->text + line->length, text, length);
    line->length += length;
}

static void
add_number(struct line *line, uint64_t number)
{
    char digits[24];
    size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    add(line, digits + at);
}

/* Add "6337173913 B (6043.6 MiB)". */
static void
add_bytes(struct line *line, uint64_t bytes)
{
    uint64_t tenths = (bytes >> 20) * 10 + (((bytes & 0xfffff) * 10 + 0x80000) >> 20);
    add_number(line, bytes);
    add(line, " B (");
    add_number(line, tenths / 10);
    add(line, ".");
    add_number(line, tenths % 10);
    add(line, " MiB)");
}

/* Whether a line of KIND may be written at second NOW. Of several threads at a time, one may. */
static bool
is_due(enum cgpu_log kind, int64_t now)
{
    /* relaxed: only the time itself is compared; no other data depends on it. */
    int64_t last = __atomic_load_n(&last_second[kind], __ATOMIC_RELAXED);
    if (last != 0 && now - last < INTERVAL_SECONDS) {
        return false;
    }
    return __atomic_compare_exchange_n(&last_second[kind], &last, now, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

static bool
begin(struct line *line, enum cgpu_log kind)
{
    struct timespec now = {0, 0};
    if (silent) {
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    line->length = 0;
    add(line, "cgpu: ");
    return is_due(kind, (int64_t)now.tv_sec + 1);
}

/*
 * Whether standard error takes a line at once. If it does not, the line is dropped: a full pipe
 * must not delay the program.
 */
static bool
has_room(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && out.revents == POLLOUT;
}

/* Write LINE. If it is a pipe without a reader, its signal must not kill the program. */
static void
put(const struct line *line)
{
    static const struct timespec at_once = {0, 0};
    sigset_t broken;
    sigset_t before;
    sigset_t pending;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    if (sigpending(&pending) != 0 || sigprocmask(SIG_BLOCK, &broken, &before) != 0) {
        return; /* on Linux the mask is the thread's own */
    }
    if (write(STDERR_FILENO, line->text, line->length) < 0 && errno == EPIPE &&
        sigismember(&pending, SIGPIPE) == 0) {
        sigtimedwait(&broken, NULL, &at_once);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Replace control characters, which the name of a variable or an entry point may contain. */
static void
keep_on_one_line(struct line *line)
{
    for (size_t i = 0; i < line->length; i++) {
        unsigned char c = (unsigned char)line->text[i];
        if (c < 0x20 || c == 0x7f) {
            line->text[i] = ' ';
        }
    }
}

/*
 * Write LINE, with thread cancellation off: a write is a cancellation point, and the caller may
 * hold a lock.
 */
static void
end(struct line *line)
{
    int saved = errno;
    int cancel = PTHREAD_CANCEL_ENABLE;
    keep_on_one_line(line);
    line->text[line->length++] = '\n';
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (is_still_there() && has_room()) {
        put(line);
    }
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}

void
cgpu_log_memory(int32_t gpu, uint64_t asked)
{
    struct line line;
    if (!begin(&line, CGPU_LOG_MEMORY)) {
        return;
    }
    if (gpu < 0) {
        add(&line, "out of memory: this GPU is not among the container's; asked ");
        add_bytes(&line, asked);
        end(&line);
        return;
    }
    uint64_t outside = cgpu_mapped_limits_outside(cgpu_limits, (uint32_t)gpu);
    add(&line, "out of memory on GPU ");
    add_number(&line, cgpu_limits->gpus[gpu].index);
    add(&line, ": cap ");
    add_bytes(&line, cgpu_mapped_limits_cap(cgpu_limits, (uint32_t)gpu));
    add(&line, ", used ");
    add_bytes(&line, cgpu_ledger_used(cgpu_state->ledger, (uint32_t)gpu));
    if (outside != 0) {
        add(&line, ", taken past cgpu ");
        add_bytes(&line, outside);
    }
    add(&line, ", asked ");
    add_bytes(&line, asked);
    end(&line);
}

void
cgpu_log_misstated(void)
{
    struct line line;
    if ((cgpu_limits->flags & CGPU_LIMITS_MISSTATED) == 0 || !begin(&line, CGPU_LOG_WHOLE)) {
        return;
    }
    add(&line, "the size stated for a GPU by ALIYUN_COM_GPU_MEM_DEV is not its own");
    for (uint32_t i = 0; i < cgpu_limits->gpu_count; i++) {
        add(&line, i == 0 ? ": of " : ", of ");
        add_bytes(&line, cgpu_limits->gpus[i].total_bytes);
        add(&line, " on GPU ");
        add_number(&line, cgpu_limits->gpus[i].index);
        add(&line, " the cap is ");
        add_bytes(&line, cgpu_mapped_limits_cap(cgpu_limits, i));
    }
    end(&line);
}

void
cgpu_log_text(enum cgpu_log kind, const char *text, const char *detail)
{
    struct line line;
    if (begin(&line, kind)) {
        add(&line, text);
        add(&line, detail);
        end(&line);
    }
}
