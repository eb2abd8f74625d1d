/* What is known of the work on a GPU as its gate closes, and markers that find no room. */
#include "check.h"
#include "gate/drain.h"
#include "gate/enter.h"
#include "gate/flight.h"
#include "gate/sync.h"
#include "quiet_ops.h"

#define SECOND UINT64_C(1000000000)

enum { OPEN = CGPU_GATE_TURN | CGPU_GATE_OPEN, FREE = CGPU_GATE_TURN | CGPU_GATE_FREE };

static struct cgpu_gate_gpu gpu;
static struct cgpu_stream streams[2];
static struct cgpu_ledger_work work;
static struct cgpu_ledger_gpu sums;
static uint32_t gate;
static uint32_t passed; /* markers up to this number, in each stream */
static int stops;
static bool blocked;                  /* a thread stays inside a launch */
static struct cgpu_unmarked in_slots; /* what threads have launched into streams[0] */

static bool
is_passed(const struct cgpu_flight *flight)
{
    return flight->seq <= passed;
}

static bool
stop(struct cgpu_gate_gpu *stopped, uint64_t now)
{
    (void)stopped, (void)now;
    stops++;
    return !blocked;
}

static void
sum(const struct cgpu_stream *stream, struct cgpu_unmarked *to)
{
    if (stream == &streams[0]) {
        to->launches += in_slots.launches;
        to->work_ns += in_slots.work_ns;
    }
}

static void
begin(void)
{
    static const uint32_t bound = 2;
    static const struct cgpu_limits_gpu limits;
    static struct cgpu_gate_ops ops;

    ops = quiet_ops;
    ops.is_passed = is_passed;
    ops.stop = stop;
    ops.sum = sum;
    in_slots = (struct cgpu_unmarked){0};
    gpu = (struct cgpu_gate_gpu){.ops = &ops,
                                 .streams = streams,
                                 .stream_bound = &bound,
                                 .work = &work,
                                 .sums = &sums,
                                 .gate = &gate,
                                 .limits = &limits};
    for (uint16_t i = 0; i < 2; i++) {
        streams[i] = (struct cgpu_stream){.gpu = &gpu, .used = 1, .index = i};
        streams[i].handle = (struct CUstream_st *)(void *)&streams[i];
    }
    stops = 0;
    blocked = false;
    passed = 0;
}

static void
launch(struct cgpu_stream *stream, uint32_t word)
{
    gate = word;
    CHECK(cgpu_enter_begin(stream, word, SECOND));
    if (cgpu_gate_is_metered(word)) {
        cgpu_batch_add(stream, &(struct cgpu_unmarked){.work_ns = 1000, .launches = 1, .key = 7});
    }
}

TEST(work_behind_three_markers_is_marked_when_one_is_passed)
{
    begin();
    for (int i = 0; i < 3; i++) {
        launch(&streams[0], OPEN);
        CHECK(cgpu_flight_cut(&streams[0], SECOND));
    }
    launch(&streams[0], OPEN);
    gate = CGPU_GATE_TURN;
    for (uint64_t i = 1; i <= 3; i++) {
        cgpu_drain_poll(&gpu, SECOND + i);
        CHECK(gpu.phase == CGPU_PHASE_DEFERRED && work.certain == 0 && stops == 1);
    }
    passed = 1;
    cgpu_drain_poll(&gpu, SECOND + 4);
    CHECK(gpu.phase == CGPU_PHASE_MARKED && streams[0].in_flight == 3 && stops == 1);
    CHECK(work.active != 0);
    passed = 4;
    CHECK(cgpu_drain_poll(&gpu, SECOND + 5) == UINT64_MAX);
    CHECK(work.active == 0);
}

TEST(after_a_free_gate_all_streams_are_marked_once)
{
    begin();
    launch(&streams[0], FREE);
    gate = CGPU_GATE_TURN;
    cgpu_drain_poll(&gpu, SECOND + 1);
    CHECK(gpu.phase == CGPU_PHASE_MARKED && gpu.flights == 2 && work.active != 0);
    passed = 1;
    cgpu_drain_poll(&gpu, SECOND + 2);
    CHECK(gpu.flights == 0 && work.active == 0 && stops == 1);
}

TEST(a_launch_under_an_open_gate_does_not_hide_those_under_a_free_one)
{
    begin();
    launch(&streams[0], FREE);
    launch(&streams[0], OPEN);
    CHECK(gpu.phase == CGPU_PHASE_UNCOUNTED);
    gate = CGPU_GATE_TURN;
    cgpu_drain_poll(&gpu, SECOND + 1);
    CHECK(gpu.flights == 2);
}

/* Work under a free gate is not counted: it said so, and worked for hours. */
TEST(who_launches_under_a_free_gate_is_not_idle)
{
    begin();
    launch(&streams[0], OPEN);
    work.idle = CGPU_IDLE_NOW;
    launch(&streams[0], FREE + CGPU_GATE_TURN);
    CHECK(work.idle == 0);
}

/* What a stream was given before it captured was lost where nothing could be marked. */
TEST(a_full_table_makes_room_where_nobody_waits_for_a_stream)
{
    begin();
    cgpu_stall_begin(&streams[0], CGPU_STALL_PERSISTENT, SECOND);
    for (int i = 0; i < CGPU_MAX_FLIGHTS; i++) {
        launch(&streams[0], OPEN);
        CHECK(cgpu_flight_cut(&streams[0], SECOND));
    }
    CHECK(gpu.flights == CGPU_MAX_FLIGHTS && !cgpu_gate_is_busy(&gpu));
    launch(&streams[1], OPEN);
    CHECK(cgpu_flight_cut(&streams[1], SECOND));
    CHECK(gpu.flights == 2 && cgpu_gate_is_busy(&gpu));
}

/* How many looks there are from FROM on for a tenth of a second. */
static int
looks(uint64_t from)
{
    int count = 0;

    for (uint64_t now = from; now < from + SECOND / 10; count++) {
        now = cgpu_drain_poll(&gpu, now);
    }
    return count;
}

TEST(a_launch_that_does_not_return_is_looked_for_ever_less_often)
{
    begin();
    blocked = true;
    launch(&streams[0], OPEN);
    gate = CGPU_GATE_TURN;
    CHECK(cgpu_drain_poll(&gpu, SECOND) == SECOND + CGPU_DRAIN_BLOCKED_NS);
    CHECK(looks(SECOND + 1) < 250);
    blocked = false;
    cgpu_drain_poll(&gpu, 2 * SECOND);
    CHECK(gpu.phase == CGPU_PHASE_MARKED);
    blocked = true;
    launch(&streams[1], 2 * CGPU_GATE_TURN | CGPU_GATE_OPEN);
    gate = 2 * CGPU_GATE_TURN;
    CHECK(cgpu_drain_poll(&gpu, 3 * SECOND) == 3 * SECOND + CGPU_DRAIN_BLOCKED_NS);
}

/* COUNT kernels that are synchronised, each with a rest of NS after it; from when. */
static uint64_t
rest_often(int count, uint64_t ns, uint64_t from)
{
    for (int i = 0; i < count; i++) {
        cgpu_enter_end_rest(&gpu, from);
        launch(&streams[0], CGPU_GATE_TURN | CGPU_GATE_PRESSED);
        cgpu_enter_count(&streams[0], 1000, false, from);
        cgpu_sync_stream(&streams[0], from, from);
        cgpu_sync_begin_rest(&gpu, from);
        from += ns;
    }
    return from;
}

TEST(who_usually_rests_for_long_says_so_when_a_rest_begins)
{
    begin();
    uint64_t now = rest_often(12, 2 * CGPU_PACE_IDLE_NS, SECOND);
    CHECK(work.idle == 1);
    now = rest_often(12, CGPU_PACE_IDLE_NS / 2, now);
    CHECK(work.idle == 0);
    now = rest_often(1, SECOND, now); /* once says little */
    now = rest_often(1, SECOND, now);
    CHECK(work.idle == 0);
    rest_often(12, 2 * CGPU_PACE_IDLE_NS, now);
    CHECK(work.idle == 1);
}

TEST(who_has_work_in_another_stream_does_not_rest)
{
    begin();
    uint64_t now = rest_often(12, 2 * CGPU_PACE_IDLE_NS, SECOND);
    launch(&streams[1], CGPU_GATE_TURN | CGPU_GATE_PRESSED);
    rest_often(12, 2 * CGPU_PACE_IDLE_NS, now);
    CHECK(work.idle == 0);
}

enum { PRESSED = CGPU_GATE_TURN | CGPU_GATE_PRESSED };
#define BATCH_NS UINT64_C(200000)

static void
launch_batch(uint64_t now)
{
    cgpu_enter_end_rest(&gpu, now);
    launch(&streams[0], PRESSED);
    streams[0].pending.work_ns = BATCH_NS;
    cgpu_enter_count(&streams[0], BATCH_NS, false, now);
    CHECK(cgpu_flight_cut(&streams[0], now));
}

/* A program that usually rests for NS waits for the end of two batches, the first of which ends. */
static uint64_t
wait_for_burst(uint64_t ns)
{
    begin();
    uint64_t now = rest_often(12, ns, SECOND);

    launch_batch(now);
    launch_batch(now);
    gpu.syncs = true;
    passed = streams[0].issued - 1;
    return now + BATCH_NS;
}

TEST(who_waits_for_work_and_then_rests_says_so_before_its_end)
{
    uint64_t now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);

    CHECK(cgpu_drain_poll(&gpu, now) == gpu.pace.end_ns - CGPU_REST_EARLY_NS);
    CHECK(work.idle == 0);
    now += BATCH_NS - CGPU_REST_EARLY_NS;
    cgpu_drain_poll(&gpu, now);
    CHECK(work.idle == CGPU_IDLE_SOON);
    passed += 1;
    cgpu_sync_stream(&streams[0], now, now + CGPU_REST_EARLY_NS);
    cgpu_sync_begin_rest(&gpu, now + CGPU_REST_EARLY_NS);
    CHECK(work.idle == CGPU_IDLE_NOW);
}

TEST(who_is_idle_is_not_taken_to_be_idle_soon)
{
    uint64_t now = wait_for_burst(2 * CGPU_PACE_IDLE_NS) + BATCH_NS;

    passed += 1;
    for (int i = 0; i < 4; i++) {
        now += CGPU_PACE_IDLE_NS;
        cgpu_drain_poll(&gpu, now);
    }
    CHECK(work.idle == CGPU_IDLE_NOW);
}

TEST(who_launches_again_does_not_rest_soon)
{
    uint64_t now = wait_for_burst(2 * CGPU_PACE_IDLE_NS) + BATCH_NS - CGPU_REST_EARLY_NS;

    cgpu_drain_poll(&gpu, now);
    CHECK(work.idle == CGPU_IDLE_SOON);
    launch_batch(now);
    CHECK(work.idle == 0);
}

/* In the last case others' work may run first, as nothing of the burst has ended. */
TEST(nobody_says_that_it_rests_soon_who_may_work_on)
{
    uint64_t early = BATCH_NS - CGPU_REST_EARLY_NS;
    uint64_t now = wait_for_burst(CGPU_PACE_IDLE_NS / 2);

    cgpu_drain_poll(&gpu, now + early);
    CHECK(work.idle == 0);
    now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);
    gpu.syncs = false;
    cgpu_drain_poll(&gpu, now + early);
    CHECK(work.idle == 0);
    now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);
    passed = 0;
    cgpu_drain_poll(&gpu, now + early);
    CHECK(work.idle == 0);
}

/* Work that threads have not handed over is not about to end, nor is what nobody can estimate. */
TEST(nobody_rests_soon_whose_unmarked_work_goes_on)
{
    uint64_t soon = BATCH_NS - CGPU_REST_EARLY_NS;
    uint64_t now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);

    in_slots = (struct cgpu_unmarked){.work_ns = BATCH_NS, .launches = 1};
    cgpu_drain_poll(&gpu, now + soon);
    CHECK(work.idle == 0);
    cgpu_drain_poll(&gpu, now + soon + BATCH_NS);
    CHECK(work.idle == CGPU_IDLE_SOON);

    now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);
    launch(&streams[0], PRESSED);
    cgpu_enter_count(&streams[0], 0, true, now);
    cgpu_drain_poll(&gpu, now + soon);
    CHECK(work.idle == 0);

    now = wait_for_burst(2 * CGPU_PACE_IDLE_NS);
    launch(&streams[0], PRESSED);
    cgpu_enter_count(&streams[0], 1000, true, now);
    cgpu_drain_poll(&gpu, now + soon);
    CHECK(work.idle == 0);
    CHECK(cgpu_flight_cut(&streams[0], now + soon));
    cgpu_drain_poll(&gpu, now + soon);
    CHECK(work.idle == 0);
}

TEST(rests_behind_a_closed_gate_are_measured_too)
{
    begin();
    uint64_t now = rest_often(12, 2 * CGPU_PACE_IDLE_NS, SECOND), usual = gpu.usual_rest_ns;

    for (int i = 0; i < 12; i++) {
        launch_batch(now);
        gate = CGPU_GATE_TURN;
        passed = streams[0].issued + 1;
        cgpu_drain_poll(&gpu, now);
        cgpu_sync_stream(&streams[0], now, now);
        cgpu_sync_begin_rest(&gpu, now);
        now += CGPU_PACE_IDLE_NS / 4;
    }
    CHECK(usual >= CGPU_PACE_IDLE_NS && gpu.usual_rest_ns < CGPU_PACE_IDLE_NS);
}

/* A thread waits at the closed gate while another one has synchronised: the gate is what rests. */
TEST(who_waits_at_the_closed_gate_does_not_rest)
{
    begin();
    uint64_t now = SECOND;

    for (int i = 0; i < 12; i++) {
        launch_batch(now);
        gate = CGPU_GATE_TURN;
        cgpu_enter_end_rest(&gpu, now); /* the other thread arrives */
        work.waiting = 1;
        passed = streams[0].issued + 1;
        cgpu_drain_poll(&gpu, now);
        cgpu_sync_stream(&streams[0], now, now);
        cgpu_sync_begin_rest(&gpu, now);
        now += 40 * CGPU_PACE_IDLE_NS;
        work.waiting = 0;
    }
    cgpu_enter_end_rest(&gpu, now);
    CHECK(gpu.usual_rest_ns == 0);
}
