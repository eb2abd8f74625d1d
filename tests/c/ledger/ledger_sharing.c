/* MEM-1: memory that one process exports and others import is paid for once, by one that has it. */
#define _GNU_SOURCE 1

#include "ledger/sharing.h"

#include <stdlib.h>

#include "ledger/slot.h"
#include "ledger_holder.h"

enum { MEMORY = 600 };

static struct cgpu_ledger *
charged(const char *path, uint64_t bytes)
{
    struct cgpu_ledger *ledger = check_attach(path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, bytes, &charged) == CGPU_OK);
    return ledger;
}

/* A process that has exported MEMORY bytes. */
static struct cgpu_ledger *
exporter(const char *path)
{
    struct cgpu_ledger *ledger = charged(path, MEMORY);

    CHECK(cgpu_sharing_export(ledger, 0, MEMORY) == CGPU_OK);
    return ledger;
}

static bool
imports(struct cgpu_ledger *ledger, uint64_t cap, uint64_t bytes)
{
    struct cgpu_import import = {0};

    return cgpu_sharing_import(ledger, 0, cap, bytes, &import) == CGPU_OK;
}

static struct cgpu_ledger *
importer(const char *path)
{
    struct cgpu_ledger *ledger = check_attach(path);

    CHECK(imports(ledger, CAP, MEMORY));
    return ledger;
}

static bool
holds(struct cgpu_ledger *ledger, uint64_t own, uint64_t all)
{
    return cgpu_ledger_own(ledger, 0) == own && cgpu_ledger_used(ledger, 0) == all;
}

TEST(the_exporter_pays_as_long_as_it_holds_it)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);

    CHECK(holds(maker, MEMORY, MEMORY) && holds(user, 0, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(maker, MEMORY, MEMORY) && holds(user, 0, MEMORY));
    cgpu_ledger_detach(user);
    cgpu_ledger_detach(maker);
}

TEST(the_importer_pays_when_the_exporter_lets_go)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);

    cgpu_sharing_end_export(maker, 0, MEMORY, MEMORY);
    CHECK(holds(maker, 0, MEMORY) && holds(user, MEMORY, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(user, 0, 0));
    cgpu_ledger_detach(user);
    cgpu_ledger_detach(maker);
}

/* Freed in a stream: the driver has it for a while yet. */
TEST(an_exporter_that_lets_go_may_be_charged_on)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);

    cgpu_sharing_end_export(maker, 0, MEMORY, 0);
    CHECK(holds(maker, MEMORY, 2 * MEMORY) && holds(user, MEMORY, 2 * MEMORY));
    CHECK(cgpu_ledger_release(maker, 0, MEMORY) == CGPU_OK);
    CHECK(holds(maker, 0, MEMORY) && holds(user, MEMORY, MEMORY));
    cgpu_ledger_detach(user);
    cgpu_ledger_detach(maker);
}

TEST(of_several_importers_one_pays)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);
    struct cgpu_ledger *other = importer(path);

    cgpu_ledger_detach(maker);
    CHECK(cgpu_ledger_used(user, 0) == MEMORY);
    CHECK(cgpu_ledger_own(user, 0) + cgpu_ledger_own(other, 0) == MEMORY);
    cgpu_ledger_detach(user);
    CHECK(holds(other, MEMORY, MEMORY));
    cgpu_ledger_detach(other);
}

TEST(what_nobody_pays_for_must_fit)
{
    const char *path = check_ledger();
    struct cgpu_ledger *user = charged(path, CAP - MEMORY);

    CHECK(!imports(user, CAP, MEMORY + 1));
    CHECK(holds(user, CAP - MEMORY, CAP - MEMORY));
    CHECK(imports(user, CAP, MEMORY));
    CHECK(holds(user, CAP, CAP));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(user, CAP - MEMORY, CAP - MEMORY));
    cgpu_ledger_detach(user);
}

/* Its caller holds a lock, and clears dead processes away without it. */
TEST(an_import_that_does_not_fit_waits_for_no_reaper)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    pid_t child = start_holder(&shared);
    struct cgpu_ledger *user = check_attach(shared.path);

    kill_and_wait(child);
    CHECK(!imports(user, CAP, MEMORY));
    cgpu_slot_reap(user, true);
    CHECK(imports(user, CAP, MEMORY) && holds(user, MEMORY, MEMORY));
    cgpu_ledger_detach(user);
}

/* As libraries of collective operations do, once for each group of processes. */
TEST(the_same_memory_imported_again_costs_nothing)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);
    struct cgpu_import again = {0};

    CHECK(cgpu_sharing_import(user, 0, MEMORY, MEMORY, &again) == CGPU_OK && again.counted == 0);
    CHECK(holds(user, 0, MEMORY));
    cgpu_ledger_detach(maker);
    CHECK(holds(user, MEMORY, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(user, MEMORY, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(user, 0, 0));
    cgpu_ledger_detach(user);
}

TEST(memory_imported_twice_is_held_until_it_is_released_twice)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);

    CHECK(imports(user, CAP, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY); /* the one that counted */
    cgpu_ledger_detach(maker);
    CHECK(holds(user, MEMORY, MEMORY));
    cgpu_sharing_end_import(user, 0, MEMORY);
    CHECK(holds(user, 0, 0));
    cgpu_ledger_detach(user);
}

/* One after the other makes memory, hands it over, and ends. */
TEST(what_is_paid_for_stays_so_when_others_export)
{
    const char *path = check_ledger();
    struct cgpu_ledger *user = check_attach(path);

    for (uint64_t makers = 1; makers <= 5; makers++) {
        struct cgpu_ledger *maker = exporter(path);

        CHECK(cgpu_ledger_own(user, 0) == (makers - 1) * MEMORY);
        CHECK(imports(user, CAP, MEMORY));
        CHECK(cgpu_ledger_own(user, 0) == (makers - 1) * MEMORY);
        cgpu_ledger_detach(maker);
        CHECK(holds(user, makers * MEMORY, makers * MEMORY));
    }
    for (uint64_t makers = 5; makers-- > 0;) {
        cgpu_sharing_end_import(user, 0, MEMORY);
        CHECK(holds(user, makers * MEMORY, makers * MEMORY));
    }
    cgpu_ledger_detach(user);
}

/* Else a process that lives on would let others import what nobody pays for. */
TEST(a_small_export_hides_no_large_import)
{
    const char *path = check_ledger();
    struct cgpu_ledger *user = charged(path, CAP - MEMORY);
    struct cgpu_import import = {0};

    CHECK(cgpu_sharing_export(user, 0, 1) == CGPU_OK);
    CHECK(!imports(user, CAP, MEMORY + 2));
    CHECK(imports(user, CAP, MEMORY + 1));
    CHECK(holds(user, CAP, CAP));
    cgpu_sharing_end_import(user, 0, MEMORY + 1);
    for (uint64_t mapped = 1; mapped <= MEMORY; mapped++) { /* piece by piece */
        CHECK(cgpu_sharing_import(user, 0, CAP, 1, &import) == CGPU_OK);
        CHECK(import.bytes == mapped && import.counted == mapped);
        CHECK(cgpu_ledger_own(user, 0) == CAP - MEMORY + mapped - 1);
    }
    cgpu_ledger_detach(user);
}

/* By its address: what is opened is not opened already. */
TEST(what_is_certainly_new_counts_beside_any_import)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);
    struct cgpu_import import = {.opened = true};

    CHECK(cgpu_sharing_import(user, 0, CAP, MEMORY, &import) == CGPU_OK);
    CHECK(holds(user, MEMORY, 2 * MEMORY));
    cgpu_ledger_detach(maker);
    CHECK(holds(user, 2 * MEMORY, 2 * MEMORY));
    cgpu_ledger_detach(user);
}

/* Another one pays already, though all together have more than the cap. */
TEST(what_is_paid_for_need_not_fit)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *other = check_attach(path);
    struct cgpu_ledger *user;

    CHECK(imports(other, CAP, 1));
    user = importer(path);
    cgpu_ledger_detach(maker);
    CHECK(holds(user, MEMORY - 1, MEMORY) && cgpu_ledger_own(other, 0) == 1);
    CHECK(imports(other, MEMORY / 2, MEMORY - 1));
    CHECK(cgpu_ledger_used(user, 0) == MEMORY);
    cgpu_ledger_detach(other);
    CHECK(holds(user, MEMORY, MEMORY));
    cgpu_ledger_detach(user);
}

/* A process may hold nothing of a GPU but what it has imported, and what others pay for. */
TEST(an_importer_that_holds_nothing_else_leaves_nothing)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = importer(path);
    struct cgpu_ledger *next = importer(path);

    CHECK(cgpu_ledger_own(user, 0) == 0);
    cgpu_ledger_detach(user);
    CHECK(!cgpu_sharing_has(maker->file, 0, 1));
    cgpu_ledger_detach(maker);
    CHECK(holds(next, MEMORY, MEMORY));
    cgpu_ledger_detach(next);
}

/* Of another GPU nothing was exported. */
TEST(each_gpu_is_by_itself)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_import import = {0};

    CHECK(cgpu_sharing_import(maker, 1, CAP, MEMORY, &import) == CGPU_OK);
    CHECK(import.counted == MEMORY);
    CHECK(cgpu_ledger_own(maker, 1) == MEMORY && holds(maker, MEMORY, MEMORY));
    CHECK(cgpu_sharing_export(maker, CGPU_MAX_GPUS, 1) == CGPU_EFULL);
    cgpu_ledger_detach(maker);
    CHECK(cgpu_ledger_used(charged(path, 1), 1) == 0);
}

static void
export_forever(void *argument)
{
    struct shared *shared = argument;

    exporter(shared->path);
    say_ready(shared);
    for (;;) {
        pause();
    }
}

/* What the host sees of SLOT: USED bytes that it pays for, and SHARED that others do. */
static bool
surveyed(struct cgpu_ledger *observer, uint32_t slot, uint64_t used, uint64_t shared)
{
    struct cgpu_survey *survey = malloc(sizeof *survey);
    bool found = false;

    CHECK(survey != NULL && cgpu_ledger_survey(observer, survey) == CGPU_OK);
    for (uint32_t i = 0; i < survey->count; i++) {
        const struct cgpu_holder *holder = &survey->holders[i];

        found |= holder->slot == slot && holder->used_bytes[0] == used &&
                 holder->shared_bytes[0] == shared;
    }
    free(survey);
    return found;
}

TEST(the_host_sees_at_once_who_pays_for_what_a_killed_process_made)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared()};
    pid_t child = check_fork(export_forever, &shared);
    struct cgpu_ledger *observer;
    struct cgpu_ledger *user;
    struct cgpu_process process;
    size_t count;

    wait_ready(&shared, 1);
    user = charged(shared.path, 10);
    CHECK(imports(user, CAP, MEMORY));
    CHECK(cgpu_ledger_observe(shared.path, &observer) == CGPU_OK);
    CHECK(surveyed(observer, user->slot, 10, MEMORY));
    kill_and_wait(child);
    CHECK(cgpu_ledger_own(user, 0) == 10);
    CHECK(surveyed(observer, user->slot, 10 + MEMORY, 0));
    CHECK(cgpu_ledger_used(observer, 0) == 10 + MEMORY);
    CHECK(cgpu_ledger_processes(observer, 0, &process, 1, &count) == CGPU_OK && count == 1);
    CHECK(process.used_bytes == 10 + MEMORY);
    cgpu_slot_reap(user, true);
    CHECK(holds(user, 10 + MEMORY, 10 + MEMORY));
    CHECK(surveyed(observer, user->slot, 10 + MEMORY, 0));
    cgpu_ledger_detach(observer);
    cgpu_ledger_detach(user);
}

/* Which of them the driver names is not known. */
TEST(the_host_sees_who_has_what_another_importer_pays_for)
{
    const char *path = check_ledger();
    struct cgpu_ledger *maker = exporter(path);
    struct cgpu_ledger *user = charged(path, 10);
    struct cgpu_ledger *other = charged(path, 20);
    struct cgpu_ledger *observer;

    CHECK(imports(user, CAP, MEMORY) && imports(other, CAP, MEMORY));
    CHECK(cgpu_ledger_observe(path, &observer) == CGPU_OK);
    CHECK(surveyed(observer, user->slot, 10, MEMORY));
    CHECK(surveyed(observer, other->slot, 20, MEMORY));
    cgpu_ledger_detach(maker);
    CHECK(surveyed(observer, user->slot, 10 + MEMORY, 0));
    CHECK(surveyed(observer, other->slot, 20, MEMORY));
    cgpu_ledger_detach(observer);
    cgpu_ledger_detach(other);
    cgpu_ledger_detach(user);
}
