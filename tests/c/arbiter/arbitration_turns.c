/* The arbitration thread and real processes: turns, and who is there (SCH-1, SCH-9, REL-2). */
#define _GNU_SOURCE 1

#include "arbiter/thread/arbitration.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"
#include "gate/gate.h"
#include "guest.h"
#include "watch.h"

enum { KERNEL_US = 300, PREEMPTIVE = CGPU_POLICY_PREEMPTIVE };

static uint32_t sleeps;
static bool old_kernel; /* one without futex_waitv; the linker sends the thread's calls here */

bool __real_cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until);
bool __wrap_cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until);

bool
__wrap_cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until)
{
    __atomic_add_fetch(&sleeps, 1, __ATOMIC_RELAXED);
    return (!old_kernel || watch->count == 1) && __real_cgpu_watch_sleep(watch, until);
}

static struct cgpu_arbitration *
prepare(uint32_t policy)
{
    struct cgpu_arbitration *arbitration;

    CHECK(cgpu_arbitration_start(policy, 4, 80, &arbitration) == CGPU_OK);
    return arbitration;
}

static struct cgpu_arbitration *
start(uint32_t policy)
{
    struct cgpu_arbitration *arbitration = prepare(policy);

    cgpu_arbitration_begin(arbitration);
    return arbitration;
}

static uint32_t
add(struct cgpu_arbitration *arbitration, const struct guest *guest)
{
    uint32_t key = 0;

    CHECK(cgpu_arbitration_add(arbitration, guest->limits, guest->ledger, 0, 1, 0, &key) ==
          CGPU_OK);
    CHECK(key != 0);
    return key;
}

static struct cgpu_arbitration_figures
figures(struct cgpu_arbitration *arbitration)
{
    struct cgpu_arbitration_figures out;

    cgpu_arbitration_read(arbitration, &out);
    return out;
}

/* Wait up to 5 s for the gate to be in STATE. */
static bool
gate_becomes(const struct guest *guest, enum cgpu_gate state)
{
    for (double end = check_seconds() + 5; check_seconds() < end; check_sleep(0.002)) {
        if (cgpu_gate_state(guest_gate(guest)) == state) {
            return true;
        }
    }
    return false;
}

static void
take_turns(void)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);

    add(arbitration, a);
    add(arbitration, b);
    guest_run(a);
    guest_run(a);
    guest_run(b);
    CHECK(guest_advances(a, 200) && guest_advances(b, 200) && guest_advances(a, 100));
    CHECK(scene->overlaps == 0);
    CHECK(figures(arbitration).turns >= 4 && figures(arbitration).tenants == 2);
    cgpu_arbitration_stop(arbitration);
}

TEST(two_containers_take_turns_and_never_overlap)
{
    take_turns();
}

TEST(they_do_where_the_kernel_cannot_wait_for_many_words)
{
    old_kernel = true;
    take_turns();
}

TEST(a_lone_container_is_free_and_the_thread_sleeps)
{
    struct guest *guest = guest_make(guest_scene(), 0, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    uint64_t steps;
    uint64_t heartbeat;

    check_sleep(0.2);
    steps = figures(arbitration).steps;
    check_sleep(0.3);
    CHECK(figures(arbitration).steps == steps); /* nobody there: it does not even wake up */
    add(arbitration, guest);
    guest_run(guest);
    CHECK(gate_becomes(guest, CGPU_GATE_FREE) && guest_advances(guest, 10));
    steps = figures(arbitration).steps;
    heartbeat = guest->page->gpus[0].heartbeat_ns;
    check_sleep(1);
    CHECK(figures(arbitration).steps - steps <= 25); /* 20 signs of life */
    CHECK(guest->page->gpus[0].heartbeat_ns - heartbeat >= UINT64_C(500000000));
    CHECK(guest->page->gpus[0].share_ppm > 0);
    cgpu_arbitration_stop(arbitration);
    CHECK(cgpu_gate_state(guest_gate(guest)) == CGPU_GATE_FREE);
}

TEST(a_killed_holder_is_not_waited_for)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);

    add(arbitration, a);
    add(arbitration, b);
    guest_run(b);
    for (int i = 0; i < 5; i++) {
        pid_t child = guest_run(a);

        CHECK(guest_advances(a, 20) && guest_advances(b, 20));
        CHECK(gate_becomes(a, CGPU_GATE_PRESSED));
        CHECK(kill(child, SIGKILL) == 0 && check_wait(child) == 128 + SIGKILL);
        scene->entered[0] = 0;
        CHECK(guest_advances(b, 200));
    }
    CHECK(figures(arbitration).expired == 0); /* its lock said that it was dead */
    cgpu_arbitration_stop(arbitration);
}

TEST(a_stopped_holder_loses_its_turn_and_may_go_on_later)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    pid_t child;

    add(arbitration, a);
    add(arbitration, b);
    child = guest_run(a);
    guest_run(b);
    CHECK(guest_advances(a, 20) && guest_advances(b, 20));
    CHECK(gate_becomes(a, CGPU_GATE_PRESSED) && kill(child, SIGSTOP) == 0);
    CHECK(guest_advances(b, 200));
    CHECK(kill(child, SIGCONT) == 0);
    CHECK(guest_advances(a, 100) && guest_advances(b, 100));
    cgpu_arbitration_stop(arbitration);
}

TEST(a_ledger_cut_short_closes_its_container_alone)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    pid_t child;
    uint64_t steps;

    add(arbitration, a);
    add(arbitration, b);
    child = guest_run(a);
    guest_run(b);
    CHECK(guest_advances(a, 20) && guest_advances(b, 20));
    CHECK(truncate(a->ledger, 100) == 0);
    check_sleep(0.05); /* it has died of a bus error, its own doing, or waits at its gate */
    CHECK(kill(child, SIGKILL) == 0 && check_wait(child) > 128);
    scene->entered[0] = 0;
    CHECK(guest_advances(b, 500));
    CHECK(gate_becomes(a, CGPU_GATE_CLOSED));
    CHECK(truncate(a->ledger, sizeof(struct cgpu_ledger_file)) == 0);
    steps = figures(arbitration).steps;
    check_sleep(0.3);
    CHECK(cgpu_gate_state(guest_gate(a)) == CGPU_GATE_CLOSED);
    CHECK(figures(arbitration).steps - steps < 100);
    cgpu_arbitration_stop(arbitration);
}

TEST(whoever_rings_without_end_does_not_keep_the_thread_busy)
{
    struct guest *a = guest_make(guest_scene(), 0, KERNEL_US);
    struct guest *b = guest_make(a->scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    uint64_t steps;
    double end;

    add(arbitration, a);
    add(arbitration, b);
    check_sleep(0.1);
    steps = figures(arbitration).steps;
    for (end = check_seconds() + 0.5; check_seconds() < end;) {
        __atomic_add_fetch(&a->file->gpus[0].bell, 1, __ATOMIC_SEQ_CST);
    }
    CHECK(figures(arbitration).steps - steps < 8000);
    cgpu_arbitration_stop(arbitration);
}

/* What an earlier arbiter let in may still be in flight (REL-2). */
TEST(a_new_arbitration_goes_on_where_the_last_one_died)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    uint32_t turn;

    add(arbitration, a);
    add(arbitration, b);
    guest_run(a);
    guest_run(b);
    for (int i = 0; i < 10; i++) {
        CHECK(guest_advances(a, 20) && guest_advances(b, 20));
        turn = guest_gate(a) / CGPU_GATE_TURN;
        cgpu_arbitration_stop(arbitration); /* which says nothing to anybody */
        arbitration = prepare(PREEMPTIVE);
        add(arbitration, a);
        __atomic_store_n(&sleeps, 0, __ATOMIC_RELAXED);
        check_sleep(0.05);
        CHECK(__atomic_load_n(&sleeps, __ATOMIC_RELAXED) < 100);
        add(arbitration, b);
        cgpu_arbitration_begin(arbitration);
        CHECK(guest_advances(a, 20) && guest_advances(b, 20));
        CHECK(guest_gate(a) / CGPU_GATE_TURN > turn);
    }
    CHECK(scene->overlaps == 0);
    cgpu_arbitration_stop(arbitration);
}

static void *
read_figures(void *arbitration)
{
    for (int i = 0; i < 300; i++) {
        (void)figures(arbitration);
        check_sleep(0.001);
    }
    return NULL;
}

TEST(containers_come_and_go_while_others_run)
{
    struct guest_scene *scene = guest_scene();
    struct guest *a = guest_make(scene, 0, KERNEL_US);
    struct guest *b = guest_make(scene, 1, KERNEL_US);
    struct cgpu_arbitration *arbitration = start(PREEMPTIVE);
    pthread_t reader;
    uint32_t key;

    add(arbitration, a);
    guest_run(a);
    guest_run(b);
    CHECK(pthread_create(&reader, NULL, read_figures, arbitration) == 0);
    for (uint32_t i = 0; i < 30; i++) {
        key = add(arbitration, b);
        CHECK(cgpu_arbitration_set_tenant(arbitration, key, 1 + i % 4, i % 2) == CGPU_OK);
        CHECK(cgpu_arbitration_set_rules(arbitration, i % 7, 4, 80) == CGPU_OK);
        check_sleep(0.005);
        CHECK(cgpu_arbitration_remove(arbitration, key) == CGPU_OK);
        CHECK(cgpu_arbitration_remove(arbitration, key) == CGPU_ENOTFOUND);
    }
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(cgpu_arbitration_set_rules(arbitration, PREEMPTIVE, 4, 80) == CGPU_OK);
    add(arbitration, b);
    CHECK(guest_advances(a, 100) && guest_advances(b, 100));
    cgpu_arbitration_stop(arbitration);
}

static void
write_at(const char *path, uint32_t value, off_t offset)
{
    int fd = open(path, O_WRONLY);

    CHECK(fd >= 0 && pwrite(fd, &value, sizeof value, offset) == sizeof value);
    close(fd);
}

TEST(what_is_out_of_range_or_no_file_of_ours_is_refused)
{
    struct guest *a = guest_make(guest_scene(), 0, KERNEL_US);
    struct cgpu_arbitration *arbitration;
    uint32_t key = 0;

    CHECK(cgpu_arbitration_start(CGPU_POLICIES, 4, 80, &arbitration) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_start(1, 0, 80, &arbitration) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_start(1, 26, 80, &arbitration) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_start(1, 4, 19, &arbitration) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_start(1, 4, 100, &arbitration) == CGPU_EINVAL);
    cgpu_arbitration_stop(NULL);
    arbitration = start(PREEMPTIVE);
    CHECK(cgpu_arbitration_set_rules(arbitration, 1, 4, 19) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_set_tenant(arbitration, 1, 1, 0) == CGPU_ENOTFOUND);
    CHECK(cgpu_arbitration_add(arbitration, a->limits, a->ledger, 1, 1, 0, &key) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_add(arbitration, a->limits, a->ledger, 0, 26, 0, &key) == CGPU_EINVAL);
    CHECK(cgpu_arbitration_add(arbitration, "/none", a->ledger, 0, 1, 0, &key) == CGPU_EIO);
    CHECK(cgpu_arbitration_add(arbitration, a->limits, "/none", 0, 1, 0, &key) == CGPU_EIO);
    CHECK(cgpu_arbitration_add(arbitration, a->ledger, a->ledger, 0, 1, 0, &key) == CGPU_EFORMAT);
    write_at(a->ledger, 99, 4);
    CHECK(cgpu_arbitration_add(arbitration, a->limits, a->ledger, 0, 1, 0, &key) == CGPU_EFORMAT);
    write_at(a->ledger, CGPU_LEDGER_VERSION, 4);
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        add(arbitration, a);
    }
    CHECK(cgpu_arbitration_add(arbitration, a->limits, a->ledger, 0, 1, 0, &key) == CGPU_EFULL);
    CHECK(figures(arbitration).tenants == CGPU_MAX_TENANTS);
    cgpu_arbitration_stop(arbitration);
}
