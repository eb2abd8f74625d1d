/* Files that are not, or no longer, a ledger: refused or survived, never believed. */
#define _GNU_SOURCE 1

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static void
expect_format_error(const char *path)
{
    struct cgpu_ledger *ledger;

    CHECK(cgpu_ledger_attach(path, 1, &ledger) == CGPU_EFORMAT && ledger == NULL);
    CHECK(cgpu_ledger_observe(path, &ledger) == CGPU_EFORMAT && ledger == NULL);
}

TEST(wrong_magic_version_or_size_is_refused)
{
    const char *path = check_ledger();
    struct cgpu_ledger_file *file = check_map(path);

    file->magic ^= 1;
    expect_format_error(path);
    file->magic ^= 1;
    file->version += 1;
    expect_format_error(path);
    file->version -= 1;
    file->size -= 1;
    expect_format_error(path);
    file->size += 1;
    cgpu_ledger_detach(check_attach(path));
    CHECK(truncate(path, sizeof *file + 1) == 0);
    expect_format_error(path);
    CHECK(truncate(path, sizeof *file - 1) == 0);
    expect_format_error(path);
    CHECK(truncate(path, 0) == 0);
    expect_format_error(path);
}

TEST(an_observer_survives_a_file_that_is_cut_short)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);
    struct cgpu_ledger *observer;
    uint64_t charged;
    size_t count = 1;

    CHECK(cgpu_ledger_charge(ledger, 0, 100, 100, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_observe(path, &observer) == CGPU_OK);
    CHECK(truncate(path, 5000) == 0);
    CHECK(cgpu_ledger_used(observer, 0) == 0);
    CHECK(cgpu_ledger_processes(observer, 0, NULL, 0, &count) == CGPU_EFORMAT && count == 0);
    CHECK(truncate(path, 0) == 0);
    CHECK(cgpu_ledger_refused(observer, 0) == 0);
    cgpu_ledger_detach(observer);
    _exit(0); /* detaching would touch what is gone */
}

TEST(an_observer_does_not_follow_its_name_to_another_file)
{
    const char *path = check_ledger();
    struct cgpu_ledger *observer;
    struct cgpu_ledger *ledger;
    uint64_t charged;

    CHECK(cgpu_ledger_observe(path, &observer) == CGPU_OK);
    CHECK(unlink(path) == 0 && cgpu_ledger_create(AT_FDCWD, path) == CGPU_OK);
    ledger = check_attach(path);
    CHECK(cgpu_ledger_charge(ledger, 0, 100, 100, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_used(observer, 0) == 0);
    cgpu_ledger_detach(observer);
    cgpu_ledger_detach(ledger);
}

static void
exercise(const char *path, struct cgpu_ledger *ledger, uint32_t gpu)
{
    static struct cgpu_process processes[CGPU_LEDGER_SLOTS];
    struct cgpu_ledger *observer;
    uint64_t charged;
    size_t count = 0;

    (void)cgpu_ledger_charge(ledger, gpu, 1000, 10, &charged);
    (void)cgpu_ledger_used(ledger, gpu);
    (void)cgpu_ledger_release(ledger, gpu, 10);
    (void)cgpu_ledger_processes(ledger, gpu, processes, 4, &count);
    CHECK(count <= CGPU_LEDGER_SLOTS);
    if (cgpu_ledger_observe(path, &observer) == CGPU_OK) {
        (void)cgpu_ledger_used(observer, gpu);
        (void)cgpu_ledger_processes(observer, CGPU_MAX_GPUS, processes, CGPU_LEDGER_SLOTS, &count);
        CHECK(count <= CGPU_LEDGER_SLOTS);
        cgpu_ledger_detach(observer);
    }
    if (cgpu_ledger_attach(path, 1, &observer) == CGPU_OK) {
        cgpu_ledger_detach(observer);
    }
}

/* Whole rounds of noise over everything behind the head, then over the head as well. */
static void
scribble(struct cgpu_ledger_file *file, int round)
{
    size_t from = round % 2 == 0 ? sizeof(uint32_t) * 3 : 0;
    unsigned char *bytes = (unsigned char *)file;
    size_t writes = round % 4 < 2 ? 2000 : 20;

    for (size_t i = 0; i < writes; i++) {
        size_t span = i % 2 == 0 ? offsetof(struct cgpu_ledger_file, slots) : sizeof *file;

        bytes[from + (size_t)random() % (span - from)] = (unsigned char)random();
    }
}

TEST(noise_in_the_file_crashes_and_stops_nobody)
{
    const char *path = check_ledger();
    struct cgpu_ledger_file *file = check_map(path);
    struct cgpu_ledger_file *fresh = malloc(sizeof *file);
    double end = check_seconds() + 3;

    memcpy(fresh, file, sizeof *file);
    srandom(1);
    for (int round = 0; check_seconds() < end; round++) {
        struct cgpu_ledger *ledger;

        memcpy(file, fresh, sizeof *file);
        ledger = check_attach(path);
        scribble(file, round);
        exercise(path, ledger, (uint32_t)random() % CGPU_MAX_GPUS);
        cgpu_ledger_detach(ledger);
    }
    free(fresh);
}
