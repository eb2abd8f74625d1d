/*
 * Preloaded: counts the pages of other threads' slots that a launch looks at, by forbidding them.
 *
 * The proxy's block of memory is the only one that a fork wipes. Threads that are not counted find
 * the pages open again after a fault of theirs, and nothing else changes for them.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compute/launch_state.h"

enum { PAGE = 4096, LINE = 256 };

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);

static struct cgpu_launch_state *state;
static __thread int counts;
static __thread int looks;

static struct cgpu_launch_state *
find(void)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[LINE];
    uintptr_t start = 0, end = 0, from, to;
    bool found = false;
    while (maps != NULL && !found && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            start = from;
            end = to;
        }
        found = strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " wf") != NULL &&
                end - start >= sizeof(struct cgpu_launch_state);
    }
    if (!found) {
        abort();
    }
    fclose(maps);
    return (struct cgpu_launch_state *)start;
}

static void
caught(int number, siginfo_t *info, void *unused)
{
    (void)number, (void)unused;
    uintptr_t page = (uintptr_t)info->si_addr / PAGE * PAGE;
    if (page < (uintptr_t)state->slots ||
        page >= (uintptr_t)(state->slots + CGPU_MAX_BATCH_SLOTS) ||
        mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) != 0) {
        abort();
    }
    looks += counts;
}

/* All pages of slots but the first, which has the caller's. */
static void
forbid(void)
{
    uintptr_t first = (uintptr_t)state->slots / PAGE * PAGE + PAGE;
    uintptr_t end = (uintptr_t)(state->slots + state->slot_bound) / PAGE * PAGE;
    if (mprotect((void *)first, end - first, PROT_NONE) != 0) {
        abort();
    }
}

/* How many pages one launch of FUNCTION into STREAM looks at. */
int
slot_looks(launch_function *launch, void *function, void *stream)
{
    if (state == NULL) {
        struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
        state = find();
        sigaction(SIGSEGV, &action, NULL);
    }
    forbid();
    counts = 1;
    looks = 0;
    int status = launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    counts = 0;
    return status == 0 ? looks : -1;
}
