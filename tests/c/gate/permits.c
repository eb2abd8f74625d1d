/* Which processes of a container have work in flight: those with a permit. */
#include "gate/permits.h"

#include "check.h"
#include "gate/flight.h"
#include "quiet_ops.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum { PROCESSES = 4, PRESSED = CGPU_GATE_TURN | CGPU_GATE_PRESSED };

static struct cgpu_gate_gpu gpus[PROCESSES];
static struct cgpu_ledger_gpu sums;
static struct cgpu_limits_gpu limits;
static int queued, woken;

static bool
wake(struct cgpu_gate_gpu *gpu)
{
    (void)gpu;
    woken += queued > 0;
    return queued > 0;
}

static void
begin(void)
{
    static struct cgpu_gate_ops ops;
    static const uint32_t none = 0;

    ops = quiet_ops;
    ops.wake = wake;
    sums = (struct cgpu_ledger_gpu){0};
    limits = (struct cgpu_limits_gpu){0};
    queued = woken = 0;
    for (int i = 0; i < PROCESSES; i++) {
        gpus[i] = (struct cgpu_gate_gpu){
            .ops = &ops, .sums = &sums, .limits = &limits, .stream_bound = &none};
    }
}

static bool
may(int process, uint64_t now)
{
    return cgpu_permits_take(&gpus[process], PRESSED, now) == 0;
}

/* The process has this much in flight, and has had it since it took its permit. */
static void
has(int process, uint64_t ns)
{
    gpus[process].pace.in_flight = ns > 0;
    gpus[process].pace.left_ns = ns;
    gpus[process].permit_used_ns += ns;
}

TEST(two_processes_have_permits_and_the_others_queue)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(cgpu_permits_take(&gpus[2], PRESSED, MS) == MS + CGPU_PERMIT_LEASE_NS &&
          gpus[2].queued_ns != 0);
    has(0, 100 * US);
    CHECK(may(0, MS) && may(1, MS)); /* both go on: they have had little */
    CHECK(woken == 0);
}

TEST(who_has_had_its_part_finishes_and_goes_behind_the_others)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS));
    queued = 1;
    has(0, CGPU_PERMIT_WORK_NS);
    CHECK(!may(0, MS) && woken == 0 && gpus[0].queued_ns == 0);
    has(0, 0);
    CHECK(!may(0, MS + 500 * US) && woken == 1 && gpus[0].queued_ns != 0 && sums.freed == 1);
    CHECK(may(2, MS + 500 * US) && gpus[2].queued_ns == 0);
    CHECK(!may(0, MS + 500 * US));
}

TEST(who_ends_its_work_gives_its_permit_to_who_queues)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS));
    queued = 1;
    has(0, 10 * US);
    cgpu_permits_renew(&gpus[0], MS);
    CHECK(woken == 0);
    has(0, 0);
    cgpu_permits_renew(&gpus[0], MS);
    CHECK(woken == 1);
    CHECK(!may(0, MS + US)); /* it does not overtake who was woken */
    CHECK(may(2, MS + 2 * US));
}

TEST(nobody_gives_a_permit_back_that_nobody_wants)
{
    begin();
    for (uint64_t now = MS; now < 100 * MS; now += MS / 4) {
        CHECK(may(0, now));
        has(0, CGPU_PERMIT_WORK_NS);
        CHECK(may(0, now));
        has(0, 0);
        cgpu_permits_renew(&gpus[0], now);
    }
    CHECK(sums.freed == 0);
    queued = 0; /* somebody queued, and is gone */
    sums.queued_ns = 100 * MS;
    has(0, CGPU_PERMIT_WORK_NS);
    has(0, 0);
    CHECK(may(0, 100 * MS) && sums.freed == 1 && sums.queued_ns == 0);
}

TEST(a_process_that_shows_no_sign_of_life_loses_its_permit)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS));
    for (uint64_t now = MS; now < MS + CGPU_PERMIT_LEASE_NS; now += MS / 10) {
        has(1, US);
        cgpu_permits_renew(&gpus[1], now);
        CHECK(!may(2, now));
    }
    CHECK(may(2, MS + CGPU_PERMIT_LEASE_NS));
    CHECK(!may(3, MS + CGPU_PERMIT_LEASE_NS) && !may(0, MS + CGPU_PERMIT_LEASE_NS));
}

TEST(who_has_queued_for_long_goes_without_one)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS));
    for (uint64_t now = MS; now < MS + CGPU_PERMIT_WAIT_NS; now += MS / 2) {
        for (int i = 0; i < 2; i++) { /* their kernels wait for that of the third */
            has(i, US);
            cgpu_permits_renew(&gpus[i], now);
        }
        CHECK(!may(2, now));
    }
    CHECK(may(2, MS + CGPU_PERMIT_WAIT_NS));
    CHECK(may(2, MS + CGPU_PERMIT_WAIT_NS)); /* until it has launched: cgpu_enter_count */
    gpus[2].queued_ns = 0;
    CHECK(!may(2, MS + CGPU_PERMIT_WAIT_NS));
}

TEST(work_that_does_not_end_may_wait_for_the_next_launch)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS));
    has(0, CGPU_PERMIT_WORK_NS);
    for (uint64_t now = MS; now < MS + CGPU_PERMIT_WAIT_NS; now += MS / 2) {
        has(1, US);
        cgpu_permits_renew(&gpus[1], now);
        CHECK(!may(2, now));
        CHECK(!may(0, now) && gpus[0].queued_ns == 0);
    }
    CHECK(may(0, MS + CGPU_PERMIT_WAIT_NS));
}

TEST(nobody_queues_any_more_when_the_gate_is_not_pressed)
{
    begin();
    CHECK(may(0, MS) && may(1, MS));
    CHECK(!may(2, MS) && gpus[2].queued_ns != 0);
    CHECK(cgpu_permits_take(&gpus[2], CGPU_GATE_TURN | CGPU_GATE_OPEN, MS) == 0);
    CHECK(gpus[2].queued_ns == 0);
}

TEST(a_permit_in_a_ledger_that_somebody_has_overwritten_is_free)
{
    begin();
    sums.permits[0] = sums.permits[1] = UINT64_MAX;
    sums.queued_ns = UINT64_MAX;
    CHECK(may(0, MS) && may(1, MS));
    has(0, CGPU_PERMIT_WORK_NS);
    has(0, 0);
    CHECK(may(0, MS));
}

TEST(a_permit_is_needed_only_where_others_wait_for_the_end)
{
    begin();
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(cgpu_permits_take(&gpus[i], CGPU_GATE_TURN | CGPU_GATE_OPEN, MS) == 0);
    }
    limits.metered = CGPU_METERED | CGPU_METERED_ROUGHLY;
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(may(i, MS));
    }
    CHECK(sums.permits[0] == 0);
}
