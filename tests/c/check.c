/* The harness of the C tests: see check.h. One test per process: PROGRAM NAME. */
#define _GNU_SOURCE 1

#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct check_test *tests;
static char path[256];
static pid_t owner;

void
check_register(struct check_test *test)
{
    test->next = tests;
    tests = test;
}

void
check_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    exit(1);
}

static void
remove_ledger(void)
{
    if (getpid() == owner) {
        unlink(path);
    }
}

const char *
check_ledger(void)
{
    const char *folder = getenv("TMPDIR");

    snprintf(path, sizeof path, "%s/ledger-%d", folder != NULL ? folder : "/tmp", getpid());
    owner = getpid();
    unlink(path);
    CHECK(cgpu_ledger_create(AT_FDCWD, path) == CGPU_OK);
    atexit(remove_ledger);
    return path;
}

struct cgpu_ledger *
check_attach(const char *at)
{
    struct cgpu_ledger *ledger;

    CHECK(cgpu_ledger_attach(at, (uint32_t)getpid(), &ledger) == CGPU_OK);
    return ledger;
}

struct cgpu_ledger_file *
check_map(const char *at)
{
    int fd = open(at, O_RDWR | O_CLOEXEC);
    void *file =
        mmap(NULL, sizeof(struct cgpu_ledger_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(fd >= 0 && file != MAP_FAILED);
    close(fd);
    return file;
}

pid_t
check_fork(void (*body)(void *), void *argument)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody behind */
        body(argument);
        _exit(0);
    }
    return child;
}

int
check_wait(pid_t child)
{
    int status = 0;

    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void *
check_shared(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(page != MAP_FAILED);
    return page;
}

double
check_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void
check_sleep(double seconds)
{
    usleep((useconds_t)(seconds * 1e6));
}

int
main(int argc, char **argv)
{
    for (struct check_test *test = tests; argc == 2 && test != NULL; test = test->next) {
        if (strcmp(test->name, argv[1]) == 0) {
            test->run();
            return 0;
        }
    }
    fprintf(stderr, "no such test\n");
    return 2;
}
