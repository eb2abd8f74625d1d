/* MEM-7: a process that dies inside the lock stops nobody, and its accounts are mended. */
#include "ledger/lock.h"
#include "ledger/sharing.h"
#include "ledger_holder.h"

/* Dies inside the critical section, with its own account changed and the total not. */
static void
die_inside(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1000, &charged) == CGPU_OK);
    CHECK(cgpu_lock_take(ledger, 0) == CGPU_OK);
    ledger->file->slots[ledger->slot].used[0] += 5000;
    ledger->file->gpus[0].used += shared->bytes;
    CHECK(cgpu_lock_take(ledger, 1) == CGPU_OK); /* on a GPU where it holds nothing */
    say_ready(shared);
    raise(SIGKILL);
}

static void
recover(uint64_t half_done)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = half_done};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 300, &charged) == CGPU_OK);
    CHECK(check_wait(check_fork(die_inside, &shared)) == 128 + SIGKILL);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 40, &charged) == CGPU_OK);
    CHECK(ledger->file->gpus[0].used ==
          300 + 40 + 6000); /* the dead one's slot is not cleared yet */
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP - 340, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_used(ledger, 0) == CAP && cgpu_ledger_own(ledger, 0) == CAP);
    CHECK(ledger->file->gpus[0].lock == 0);
    cgpu_ledger_detach(ledger);
}

TEST(a_death_inside_the_lock_before_the_total_is_mended)
{
    recover(0);
}

TEST(a_death_inside_the_lock_after_the_total_is_mended)
{
    recover(5000);
}

TEST(a_lock_that_died_with_its_holder_does_not_outlive_the_slot)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared()};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    struct cgpu_ledger *next;
    uint64_t charged;

    CHECK(check_wait(check_fork(die_inside, &shared)) == 128 + SIGKILL);
    next = check_attach(shared.path); /* reaps; the lock's word named a slot that is free now */
    CHECK(ledger->file->gpus[0].lock == 0 && ledger->file->gpus[1].lock == 0);
    CHECK(cgpu_ledger_charge(next, 0, CAP, CAP, &charged) == CGPU_OK);
    cgpu_ledger_detach(next);
    cgpu_ledger_detach(ledger);
}

TEST(a_lock_word_of_an_earlier_generation_is_taken_over)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint32_t generation = ledger->file->slots[ledger->slot].generation;
    uint64_t charged;

    ledger->file->gpus[0].lock = cgpu_lock_word(ledger->slot, generation - 1);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_OK);
    ledger->file->gpus[0].lock = 0x7ff; /* no slot at all */
    CHECK(cgpu_ledger_release(ledger, 0, 1) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}

enum { BEGUN, CHARGED, DONE, STAGES };

/* Dies while it charges the process of the first slot 700 bytes for an import, instead of 600. */
static void
die_while_charging_an_import(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    struct cgpu_ledger_sharing *sharing = (struct cgpu_ledger_sharing *)ledger->file->works;
    uint64_t *used = &ledger->file->slots[0].used[0];

    CHECK(cgpu_lock_take(ledger, 0) == CGPU_OK);
    CHECK(sharing->due == 600 && *used == 300 + 600);
    sharing->beside = 300 + 1;
    sharing->due = shared->bytes >= CHARGED ? 700 : 600;
    *used = shared->bytes >= DONE ? 300 + 700 : 300 + 600;
    raise(SIGKILL);
}

TEST(a_death_while_an_import_is_charged_is_mended)
{
    for (uint64_t stage = BEGUN; stage < STAGES; stage++) {
        struct shared shared = {.path = check_ledger(), .bytes = stage};
        struct cgpu_ledger *ledger = check_attach(shared.path);
        struct cgpu_import import = {0};
        const struct cgpu_ledger_sharing *sharing =
            (struct cgpu_ledger_sharing *)ledger->file->works;
        uint64_t all = stage >= CHARGED ? 300 + 700 + 40 : 300 + 600 + 40;
        uint64_t charged;

        CHECK(cgpu_ledger_charge(ledger, 0, CAP, 300, &charged) == CGPU_OK);
        CHECK(cgpu_sharing_import(ledger, 0, CAP, 600, &import) == CGPU_OK);
        CHECK(check_wait(check_fork(die_while_charging_an_import, &shared)) == 128 + SIGKILL);
        CHECK(cgpu_ledger_charge(ledger, 0, CAP, 40, &charged) == CGPU_OK);
        CHECK(cgpu_ledger_own(ledger, 0) == all && cgpu_ledger_used(ledger, 0) == all);
        CHECK(sharing->beside == 0);
        cgpu_ledger_detach(ledger);
    }
}
