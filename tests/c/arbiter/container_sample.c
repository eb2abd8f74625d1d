/* What a container's processes say, added up; and what is not believed (REL-2, REL-7). */
#define _GNU_SOURCE 1

#include "arbiter/thread/container.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "guest.h"
#include "ledger/attachment.h"
#include "ledger/slot.h"
#include "ledger/work.h"

#define MS UINT64_C(1000000)

static unsigned asked;  /* for the life of a slot's process; the linker sends native's calls here */
static clock_t ask_for; /* processor time that each such question takes, in us */

bool __real_cgpu_slot_dead(int fd, uint32_t slot);
bool __wrap_cgpu_slot_dead(int fd, uint32_t slot);

bool
__wrap_cgpu_slot_dead(int fd, uint32_t slot)
{
    clock_t begun = clock();

    _Static_assert(CLOCKS_PER_SEC == 1000000, "us");
    asked += 1;
    while (clock() - begun < ask_for) {
    }
    return __real_cgpu_slot_dead(fd, slot);
}

static struct cgpu_container *
open_container(const struct guest *guest)
{
    struct cgpu_container *container;

    CHECK(cgpu_container_open(guest->limits, guest->ledger, 0, &container) == CGPU_OK);
    return container;
}

static struct cgpu_demand
sample(struct cgpu_container *container, uint64_t now)
{
    struct cgpu_demand demand;

    cgpu_container_sample(container, now, &demand);
    return demand;
}

static struct cgpu_ledger_work *
claim(struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct cgpu_ledger_work *work;

    CHECK(cgpu_work_claim(ledger, gpu, &work) == CGPU_OK);
    return work;
}

TEST(what_processes_say_is_added_up)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledgers[2] = {check_attach(guest->ledger), check_attach(guest->ledger)};
    struct cgpu_ledger_work *a = claim(ledgers[0], 0);
    struct cgpu_ledger_work *b = claim(ledgers[1], 0);
    struct cgpu_demand demand = sample(container, MS);

    CHECK(!demand.active && !demand.waiting && !demand.idle && !demand.certain);
    a->active = 9;
    a->idle = 1;
    a->certain = 1;
    a->end_ns = 70;
    demand = sample(container, 2 * MS);
    CHECK(demand.active && demand.idle && demand.certain && demand.end_ns == 70);
    b->active = 9;
    b->end_ns = 50;
    b->waiting = 2;
    demand = sample(container, 3 * MS);
    CHECK(demand.active && demand.waiting && !demand.idle && !demand.certain);
    CHECK(demand.end_ns == 70);
    b->idle = 1;
    b->certain = 1;
    demand = sample(container, 4 * MS);
    CHECK(demand.idle && demand.certain);
    b->end_ns = 0; /* not known */
    CHECK(!sample(container, 5 * MS).certain);
    claim(ledgers[0], 1)->waiting = 1; /* another GPU's */
    b->active = 0;
    b->waiting = 0;
    demand = sample(container, 6 * MS);
    CHECK(demand.active && !demand.waiting && demand.idle && demand.certain);
    cgpu_ledger_detach(ledgers[0]);
    cgpu_ledger_detach(ledgers[1]);
    CHECK(!sample(container, 7 * MS).active);
    cgpu_container_close(container);
}

TEST(the_first_of_the_processes_at_work_says_when_a_container_began)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledgers[2] = {check_attach(guest->ledger), check_attach(guest->ledger)};
    struct cgpu_ledger_work *a = claim(ledgers[0], 0);
    struct cgpu_ledger_work *b = claim(ledgers[1], 0);

    cgpu_work_begin(a, 9, 70);
    CHECK(sample(container, MS).active && sample(container, MS).begun_ns == 70);
    cgpu_work_begin(b, 9, 90);
    cgpu_work_begin(a, 11, 95); /* a new turn, with work of the last one in flight */
    CHECK(sample(container, 2 * MS).begun_ns == 70);
    a->active = 0;
    CHECK(sample(container, 3 * MS).begun_ns == 90);
    cgpu_work_begin(a, 11, 97);
    b->begun_ns = 0; /* not known */
    CHECK(sample(container, 4 * MS).begun_ns == 0);
    cgpu_ledger_detach(ledgers[0]);
    cgpu_ledger_detach(ledgers[1]);
    cgpu_container_close(container);
}

TEST(of_what_stood_apart_only_that_since_the_first_look_counts_and_nothing_is_taken_back)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);

    cgpu_work_add_stall(cgpu_work_sums(ledger, 0));
    cgpu_work_add_stalled_ns(cgpu_work_sums(ledger, 0), 70);
    CHECK(sample(container, MS).stalls == 0 && sample(container, MS).stalled_ns == 0);
    cgpu_work_add_stall(cgpu_work_sums(ledger, 0));
    cgpu_work_add_stall(cgpu_work_sums(ledger, 1)); /* another GPU's */
    CHECK(sample(container, MS).stalls == 1 && sample(container, MS).stalled_ns == 0);
    cgpu_work_add_stalled_ns(cgpu_work_sums(ledger, 0), 30);
    cgpu_work_add_stalled_ns(cgpu_work_sums(ledger, 1), 5);
    CHECK(sample(container, MS).stalls == 1 && sample(container, MS).stalled_ns == 30);
    guest->file->gpus[0].stalled_ns = 1;
    CHECK(sample(container, MS).stalled_ns == 30);
    cgpu_work_add_stalled_ns(cgpu_work_sums(ledger, 0), 4);
    CHECK(sample(container, MS).stalled_ns == 34);
    cgpu_ledger_detach(ledger);
    cgpu_container_close(container);
}

TEST(gpu_time_is_never_taken_back)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    struct cgpu_ledger_work *work = claim(ledger, 0);

    CHECK(sample(container, MS).busy_ns == 0);
    work->busy_ns = 500;
    CHECK(sample(container, 2 * MS).busy_ns == 500);
    cgpu_ledger_detach(ledger);
    CHECK(sample(container, 3 * MS).busy_ns == 500);
    ledger = check_attach(guest->ledger);
    work = claim(ledger, 0);
    CHECK(sample(container, 4 * MS).busy_ns == 500);
    work->busy_ns = 40;
    CHECK(sample(container, 5 * MS).busy_ns == 540);
    work->busy_ns = 10;
    CHECK(sample(container, 6 * MS).busy_ns == 540);
    cgpu_container_close(container);
}

TEST(done_work_adds_up_although_its_counter_overflows)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    struct cgpu_ledger_work *work = claim(ledger, 0);

    work->done_us = UINT32_MAX - 2;
    CHECK(sample(container, MS).done_ns == 0);
    work->done_us += 10;
    CHECK(sample(container, 2 * MS).done_ns == 10000);
    cgpu_ledger_detach(ledger);
    ledger = check_attach(guest->ledger);
    claim(ledger, 0);
    CHECK(sample(container, 3 * MS).done_ns == 10000);
    cgpu_container_close(container);
}

static void
wait_at_the_gate(void *argument)
{
    claim(check_attach(argument), 0)->waiting = 1;
    pause();
}

TEST(a_dead_process_says_nothing_and_a_quiet_one_is_not_asked_for)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    pid_t child = check_fork(wait_at_the_gate, guest->ledger);

    (void)claim(ledger, 0);
    asked = 0;
    while (!sample(container, MS).waiting) {
        check_sleep(0.001);
    }
    CHECK(asked == 1);
    CHECK(sample(container, 2 * MS).waiting && asked == 1); /* the answer is good for 2 ms */
    CHECK(sample(container, 3 * MS).waiting && asked == 2);
    CHECK(kill(child, SIGKILL) == 0 && check_wait(child) == 128 + SIGKILL);
    CHECK(!sample(container, 5 * MS).waiting && asked == 3);
    CHECK(!sample(container, 9 * MS).waiting && asked == 3); /* it does not come back */
    cgpu_container_close(container);
}

TEST(a_container_that_makes_asking_costly_is_asked_the_less)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);

    claim(ledger, 0)->active = 9;
    asked = 0;
    ask_for = 300;
    CHECK(sample(container, MS).active && asked == 1);
    CHECK(sample(container, 15 * MS).active && asked == 1);
    ask_for = 0;
    CHECK(sample(container, 1000 * MS).active && asked == 2);
    CHECK(sample(container, 1010 * MS).active && asked == 3);
    cgpu_ledger_detach(ledger);
    cgpu_container_close(container);
}

TEST(many_questions_that_are_each_a_little_costly_take_a_small_part_of_the_time)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledgers[16];

    for (unsigned i = 0; i < 16; i++) {
        ledgers[i] = check_attach(guest->ledger);
        claim(ledgers[i], 0)->active = 9;
    }
    asked = 0;
    ask_for = 30; /* as with 3,000 locks */
    for (unsigned i = 0; i < 200; i++) {
        CHECK(sample(container, (1000 + i) * MS).active);
    }
    /* of 1,600: 220 ms / (32 * 30 us) are 229; a slow processor makes a question long, and rare */
    CHECK(asked >= 16 && asked < 300);
    ask_for = 0;
    asked = 0;
    CHECK(sample(container, 100000 * MS).active && asked == 16);
    for (unsigned i = 0; i < 16; i++) {
        cgpu_ledger_detach(ledgers[i]);
    }
    cgpu_container_close(container);
}

TEST(owners_that_are_none_say_nothing)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    const uint32_t owners[] = {ledger->word + (1 << 11), ledger->word + 1, 2047, UINT32_MAX};

    for (unsigned i = 0; i < 4; i++) {
        guest->file->works[i].owner = owners[i];
        guest->file->works[i].active = 9;
        guest->file->works[i].waiting = 1;
    }
    guest->file->work_bound = UINT32_MAX;
    CHECK(!sample(container, MS).active && !sample(container, MS).waiting);
    guest->file->works[CGPU_LEDGER_WORKS - 1].owner = ledger->word;
    guest->file->works[CGPU_LEDGER_WORKS - 1].waiting = 1;
    CHECK(sample(container, 2 * MS).waiting);
    cgpu_container_close(container);
}

TEST(works_without_end_do_not_make_a_look_long)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);

    for (unsigned i = 0; i < CGPU_LEDGER_WORKS; i++) {
        guest->file->works[i].owner = ledger->word;
        guest->file->works[i].active = 9;
    }
    guest->file->work_bound = CGPU_LEDGER_WORKS;
    asked = 0;
    for (unsigned i = 1; i <= 32; i++) {
        CHECK(sample(container, i * MS).active);
        CHECK(asked <= i * 16);
    }
    cgpu_container_close(container);
}

TEST(of_what_processes_say_of_the_lag_the_least_counts)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    struct cgpu_ledger_work *work = claim(ledger, 0);

    work->waiting = 1;
    CHECK(sample(container, MS).lag_ns == 0);
    guest->file->works[1] = *work;
    guest->file->works[2] = *work;
    guest->file->work_bound = 3;
    guest->file->works[1].lag_ns = 7000;
    guest->file->works[2].lag_ns = 9000;
    CHECK(sample(container, 2 * MS).lag_ns == 7000);
    cgpu_container_close(container);
}

TEST(the_page_says_whether_a_turn_is_quiet)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);

    cgpu_container_set_gate(container, CGPU_GATE_PRESSED, true);
    CHECK(container->entry->quiet_gate == guest_gate(guest));
    cgpu_container_set_gate(container, CGPU_GATE_CLOSED, false);
    CHECK(container->entry->quiet_gate == 0);
    cgpu_container_close(container);
}

TEST(a_ledger_cut_short_is_not_believed_again)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);
    struct cgpu_ledger *ledger = check_attach(guest->ledger);

    claim(ledger, 0)->waiting = 1;
    CHECK(sample(container, MS).waiting && !container->broken);
    CHECK(truncate(guest->ledger, 4224) == 0); /* the bells are left */
    CHECK(!sample(container, 2 * MS).waiting && container->broken);
    CHECK(truncate(guest->ledger, sizeof(struct cgpu_ledger_file)) == 0);
    claim(ledger, 0)->waiting = 1;
    CHECK(!sample(container, 3 * MS).waiting && container->broken);
    cgpu_container_close(container);
}

TEST(a_metered_gate_is_closed_and_a_free_one_left_when_a_container_is_taken_over)
{
    struct guest *guest = guest_make(guest_scene(), 0, 0);
    struct cgpu_container *container = open_container(guest);

    cgpu_container_set_gate(container, CGPU_GATE_PRESSED, false);
    cgpu_container_close(container);
    container = open_container(guest);
    CHECK(guest_gate(guest) == (3 * CGPU_GATE_TURN | CGPU_GATE_CLOSED));
    cgpu_container_set_gate(container, CGPU_GATE_FREE, false);
    cgpu_container_close(container);
    container = open_container(guest);
    CHECK(guest_gate(guest) == (4 * CGPU_GATE_TURN | CGPU_GATE_FREE));
    cgpu_container_close(container);
}
