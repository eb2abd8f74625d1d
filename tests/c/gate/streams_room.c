/*
 * What a program has in flight that launches into many streams in turn, on a GPU that runs all of
 * it in order: the next container waits for that.
 */
#include "check.h"
#include "gate/drain.h"
#include "gate/enter.h"
#include "gate/flight.h"
#include "gate/sync.h"
#include "quiet_ops.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum {
    STREAMS = 512,
    SEQS = 8,
    LAUNCH_NS = 2000,
    PRESSED = CGPU_GATE_TURN | CGPU_GATE_PRESSED,
    ALONE = CGPU_GATE_TURN | CGPU_GATE_OPEN
};

static struct cgpu_gate_gpu gpu;
static struct cgpu_stream streams[STREAMS];
static struct cgpu_ledger_work work;
static struct cgpu_ledger_gpu sums;
static struct cgpu_gate_ops ops;
static uint32_t gate, bound;
static uint64_t now, next, end; /* next: look of the helper thread; end: of all launches */
static uint64_t ends[STREAMS][SEQS];

struct found {
    uint64_t most_ns, idle_ns, launches, markers;
};

static bool
put_marker(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind)
{
    *kind = 0;
    ends[stream->index][seq % SEQS] = end;
    return true;
}

static bool
is_passed(const struct cgpu_flight *flight)
{
    return ends[flight->stream->index][flight->seq % SEQS] <= now;
}

static void
begin(uint32_t count, uint32_t word)
{
    static const struct cgpu_limits_gpu limits;

    ops = quiet_ops;
    ops.put_marker = put_marker;
    ops.is_passed = is_passed;
    gate = word;
    bound = count;
    now = next = end = MS;
    work = (struct cgpu_ledger_work){0};
    sums = (struct cgpu_ledger_gpu){0};
    gpu = (struct cgpu_gate_gpu){.ops = &ops,
                                 .streams = streams,
                                 .stream_bound = &bound,
                                 .work = &work,
                                 .sums = &sums,
                                 .gate = &gate,
                                 .limits = &limits};
    for (uint16_t i = 0; i < count; i++) {
        streams[i] = (struct cgpu_stream){.gpu = &gpu, .used = 1, .index = i};
    }
}

/* The process's helper thread looks meanwhile. */
static void
wait_until(uint64_t until)
{
    while (next < until) {
        now = next > now ? next : now;
        next = cgpu_drain_poll(&gpu, now);
    }
    now = until;
}

/* Launch a kernel of NS into STREAM as soon as there is room. */
static void
launch(struct cgpu_stream *stream, uint64_t ns)
{
    uint64_t key = cgpu_pace_key(&gpu, ns), estimate, until;

    CHECK(cgpu_enter_begin(stream, gate, now));
    for (;;) {
        estimate = cgpu_pace_estimate(&gpu.pace, key);
        until = cgpu_enter_room(stream, gate, estimate, now);
        if (until == 0) {
            break;
        }
        wait_until(until);
    }
    cgpu_batch_add(stream, &(struct cgpu_unmarked){.work_ns = estimate, .launches = 1, .key = key});
    cgpu_enter_count(stream, estimate, false, now);
    end = (end > now ? end : now) + ns;
}

/* The gate closes, and opens again when all has ended. */
static void
change_turns(void)
{
    gate = cgpu_gate_next(gate, CGPU_GATE_CLOSED);
    for (next = now; work.active != 0; next = cgpu_drain_poll(&gpu, now)) {
        now = next;
    }
    next = now;
    gate = cgpu_gate_next(gate, CGPU_GATE_PRESSED);
}

/* Kernels of NS into COUNT streams, in turn, for 300 ms once their length is known. */
static struct found
play(uint32_t count, uint64_t ns, uint32_t word)
{
    struct found found = {0};
    uint64_t turn = 0;

    begin(count, word);
    for (uint32_t i = 0; now < 600 * MS; i++) {
        uint64_t before = end;

        launch(&streams[i % count], ns);
        if (now > 300 * MS) {
            found.idle_ns += now > before && turn + MS < now ? now - before : 0;
            found.most_ns = end - now > found.most_ns ? end - now : found.most_ns;
            found.launches++;
        } else {
            found.markers = work.markers;
        }
        now += LAUNCH_NS;
        if (now - turn > 5 * MS && word == PRESSED) {
            change_turns();
            turn = now;
        }
    }
    found.markers = work.markers - found.markers;
    return found;
}

TEST(work_in_flight_is_bounded_across_streams)
{
    static const uint64_t lengths[] = {5 * US, 20 * US, 100 * US, 300 * US, 3 * MS};

    for (uint32_t count = 1; count <= STREAMS; count *= 8) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct found found = play(count, lengths[i], PRESSED);

            CHECK(found.most_ns <= MS + lengths[i]);
            CHECK(found.idle_ns < 6 * MS);
        }
    }
}

TEST(streams_of_a_program_alone_share_what_may_be_in_flight)
{
    for (uint32_t count = 1; count <= STREAMS; count *= 8) {
        struct found found = play(count, 20 * US, ALONE);

        CHECK(found.most_ns <= 2 * CGPU_PACE_AHEAD_NS);
        CHECK(found.idle_ns == 0);
        CHECK(count > 16 || found.markers <= found.launches / 8);
    }
}

/* The helper thread marks what a program launched before it synchronised, and looks later. */
TEST(what_is_marked_while_a_program_synchronises_has_ended_when_that_returns)
{
    uint64_t begun, used = 0;

    begin(1, PRESSED);
    for (int i = 0; i < 3; i++) {
        launch(&streams[0], 100 * US);
        begun = now;
        CHECK(cgpu_flight_cut(&streams[0], now + 10 * US));
        now = end;
        used += 100 * US;
        cgpu_sync_stream(&streams[0], begun, now);
        now += 70 * US;
        cgpu_flight_harvest(&gpu, now);
        CHECK(gpu.flights == 0 && work.busy_ns == used);
        now += 100 * US;
    }
}

TEST(what_another_thread_launches_while_one_synchronises_has_not_ended_when_that_returns)
{
    uint64_t begun;

    begin(1, PRESSED);
    begun = now;
    now += 10 * US;
    launch(&streams[0], 100 * US);
    CHECK(cgpu_flight_cut(&streams[0], now));
    cgpu_sync_stream(&streams[0], begun, now + 10 * US);
    CHECK(gpu.flights == 1 && gpu.flight[0].ended_ns == 0);
}

TEST(sixteen_streams_beside_an_idle_neighbour_keep_the_gpu_busy_with_few_markers)
{
    static const struct {
        uint64_t ns, launches; /* at least so many for each marker */
    } lengths[] = {{5 * US, 60}, {20 * US, 8}, {100 * US, 1}, {300 * US, 1}};

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct found found = play(16, lengths[i].ns, ALONE);

        CHECK(found.idle_ns == 0);
        CHECK(found.markers * lengths[i].launches <= found.launches);
    }
}
