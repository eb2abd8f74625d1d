/* What a look at a ledger may cost, whatever its container does to make asking costly (REL-7). */
#define _GNU_SOURCE 1

#include "ledger/observer.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "guest.h"
#include "ledger/attachment.h"
#include "ledger/slot.h"

static unsigned asked;  /* for the life of a slot's process; the linker sends native's calls here */
static clock_t ask_for; /* processor time that each such question takes, in us */

static clock_t ask_first_for; /* the same of a look's first question, if that takes longer */

bool __real_cgpu_slot_dead(int fd, uint32_t slot);
bool __wrap_cgpu_slot_dead(int fd, uint32_t slot);

bool
__wrap_cgpu_slot_dead(int fd, uint32_t slot)
{
    clock_t begun = clock();
    clock_t us = asked == 0 && ask_first_for > ask_for ? ask_first_for : ask_for;

    _Static_assert(CLOCKS_PER_SEC == 1000000, "us");
    asked += 1;
    while (clock() - begun < us) {
    }
    return __real_cgpu_slot_dead(fd, slot);
}

static unsigned closed; /* descriptors: for each the kernel walks all locks on its file */

int __real_close(int fd);
int __wrap_close(int fd);

int
__wrap_close(int fd)
{
    closed += 1;
    return __real_close(fd);
}

/* A ledger that says of each of its slots that a process with a byte on GPU 1 has it. */
static struct cgpu_ledger *
observe_full(const struct guest *guest)
{
    struct cgpu_ledger *ledger;

    for (uint32_t i = 0; i < CGPU_LEDGER_SLOTS; i++) {
        guest->file->slots[i].pid = i + 1;
        guest->file->slots[i].used[1] = 1;
        guest->file->slots[i].taken = 1;
    }
    CHECK(cgpu_ledger_observe(guest->ledger, &ledger) == CGPU_OK);
    return ledger;
}

static const struct cgpu_survey *
survey(struct cgpu_ledger *ledger, unsigned us)
{
    static struct cgpu_survey found;

    asked = 0;
    ask_for = (clock_t)us;
    CHECK(cgpu_ledger_survey(ledger, &found) == CGPU_OK);
    CHECK(found.asked <= asked); /* some are asked about twice */
    return &found;
}

TEST(every_process_is_asked_for_where_that_costs_what_it_should)
{
    struct cgpu_ledger *ledger = observe_full(guest_make(guest_scene(), 0, 0));
    const struct cgpu_survey *found = survey(ledger, 0);

    CHECK(found->asked == CGPU_LEDGER_SLOTS && found->unasked == 0 && found->count == 0);
    CHECK(cgpu_ledger_rests(ledger) == 0);
    cgpu_ledger_detach(ledger);
}

TEST(where_asking_is_costly_a_few_are_asked_for_and_the_rest_count_as_living)
{
    struct cgpu_ledger *ledger = observe_full(guest_make(guest_scene(), 0, 0));
    const struct cgpu_survey *found = survey(ledger, 500);

    CHECK(found->asked >= 1 && found->asked < 16);
    CHECK(found->unasked == CGPU_LEDGER_SLOTS - found->asked && found->count == found->unasked);
    CHECK(found->holders[found->count - 1].pid == CGPU_LEDGER_SLOTS);
    CHECK(found->holders[found->count - 1].used_bytes[1] == 1);
    found = survey(ledger, 0);
    CHECK(found->asked == 0 && found->count == CGPU_LEDGER_SLOTS); /* it is left alone */
    CHECK(cgpu_ledger_used(ledger, 1) == CGPU_LEDGER_SLOTS && asked == 0);
    cgpu_ledger_detach(ledger);
}

TEST(a_question_that_took_long_for_once_is_no_reason_to_ask_no_more)
{
    struct cgpu_ledger *ledger = observe_full(guest_make(guest_scene(), 0, 0));
    const struct cgpu_survey *found;

    ask_first_for = 20000;
    found = survey(ledger, 0);
    CHECK(asked > CGPU_LEDGER_SLOTS);
    CHECK(found->asked == CGPU_LEDGER_SLOTS && found->unasked == 0 && found->count == 0);
    CHECK(cgpu_ledger_rests(ledger) == 0);
    cgpu_ledger_detach(ledger);
}

TEST(a_ledger_is_left_alone_a_thousand_times_as_long_as_it_took_and_a_minute_at_most)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_ledger *ledger = observe_full(guest);
    struct cgpu_ledger *later;
    struct timespec now;
    uint64_t rests;
    uint64_t ns;

    (void)survey(ledger, 100000);
    clock_gettime(CLOCK_MONOTONIC, &now);
    ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    rests = cgpu_ledger_rests(ledger);
    CHECK(rests > ns + UINT64_C(30000000000) && rests <= ns + UINT64_C(60000000000));
    cgpu_ledger_detach(ledger);
    CHECK(cgpu_ledger_observe(guest->ledger, &later) == CGPU_OK);
    cgpu_ledger_rest(later, rests); /* what one observer has found out, the next one knows */
    CHECK(survey(later, 0)->asked == 0);
    cgpu_ledger_rest(later, 1); /* long ago */
    CHECK(survey(later, 0)->asked == CGPU_LEDGER_SLOTS && cgpu_ledger_rests(later) == 0);
    cgpu_ledger_detach(later);
}

TEST(a_full_ledger_that_is_just_costly_enough_costs_no_more_than_the_bound)
{
    struct cgpu_ledger *ledger = observe_full(guest_make(guest_scene(), 0, 0));
    const struct cgpu_survey *found = survey(ledger, 30); /* 31 ms, if it were for ever */

    CHECK(found->asked < CGPU_LEDGER_SLOTS / 2);
    cgpu_ledger_detach(ledger);
}

TEST(a_look_closes_the_file_once_whatever_it_asks)
{
    struct cgpu_ledger *ledger = observe_full(guest_make(guest_scene(), 0, 0));

    closed = 0;
    (void)survey(ledger, 0);
    (void)cgpu_ledger_used(ledger, 1);
    (void)cgpu_ledger_total(ledger, 1);
    (void)cgpu_ledger_refused(ledger, 1);
    CHECK(closed == 0);
    cgpu_ledger_detach(ledger);
    CHECK(closed == 1);
}
