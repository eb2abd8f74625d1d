/*
 * The lag of a GPU: how long a launch takes to get there and its end to be seen, found out by a
 * marker that has nothing to wait for.
 */
#include "check.h"
#include "gate/pace.h"

#define US     UINT64_C(1000)
#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static struct cgpu_pace pace;

/* A probe at NOW that is seen LAG_NS later by somebody who looks every 20 us. */
static void
probe(uint64_t now, uint64_t lag_ns)
{
    struct cgpu_pace_batch nothing = {.start_ns = now, .certain = 1};

    cgpu_pace_mark(&pace, &nothing, now);
    for (uint64_t at = now; at < now + lag_ns; at += 20 * US) {
        cgpu_pace_note_poll(&pace, at);
    }
    cgpu_pace_pass(&pace, &nothing, now + lag_ns, CGPU_SEEN_AT_ONCE);
    CHECK(pace.in_flight == 0 && pace.probed_ns == 0);
}

static void
mark(uint64_t work, uint64_t now)
{
    struct cgpu_pace_batch batch = {
        .key = 7, .launches = 1, .work_ns = work, .start_ns = now, .certain = 1};

    cgpu_pace_mark(&pace, &batch, now);
}

TEST(as_much_more_is_in_flight_as_the_gpu_answers_late)
{
    pace = (struct cgpu_pace){0};
    probe(SECOND, 700 * US);
    CHECK(pace.lag_ns == 600 * US); /* 100 us are what any GPU needs */
    mark(250 * US, 2 * SECOND);
    mark(850 * US, 2 * SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, 2 * SECOND) == 0);
    mark(250 * US, 2 * SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, 2 * SECOND) != 0);
}

TEST(a_gpu_that_answers_at_once_has_no_lag)
{
    pace = (struct cgpu_pace){0};
    CHECK(pace.lag_ns == 0); /* not known */
    probe(SECOND, 60 * US);
    CHECK(pace.lag_ns == 1); /* known */
}

TEST(one_late_answer_is_not_the_lag_and_one_early_answer_is)
{
    pace = (struct cgpu_pace){0};
    probe(SECOND, 200 * US);
    probe(2 * SECOND, 900 * US);
    CHECK(pace.lag_ns < 130 * US);
    probe(3 * SECOND, 150 * US);
    CHECK(pace.lag_ns == 50 * US);
}

TEST(the_lag_is_never_more_than_a_millisecond)
{
    pace = (struct cgpu_pace){0};
    probe(SECOND, 50 * MS);
    CHECK(pace.lag_ns == CGPU_PACE_LAG_NS);
}

TEST(a_probe_that_nobody_looked_for_says_nothing)
{
    struct cgpu_pace_batch nothing = {.start_ns = SECOND, .certain = 1};

    pace = (struct cgpu_pace){0};
    cgpu_pace_mark(&pace, &nothing, SECOND);
    cgpu_pace_note_poll(&pace, SECOND);
    cgpu_pace_pass(&pace, &nothing, SECOND + 5 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(pace.lag_ns == 0 && pace.probed_ns == 0);
}

TEST(a_probe_is_looked_for_soon)
{
    struct cgpu_pace_batch nothing = {.start_ns = SECOND, .certain = 1};

    pace = (struct cgpu_pace){0};
    cgpu_pace_mark(&pace, &nothing, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == 0);
    mark(50 * MS, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == SECOND + 20 * US);
}

/* Of the first kernel on a GPU without work the lag is no part, but it is not all taken off. */
TEST(what_a_kernel_takes_is_learnt_without_the_lag)
{
    struct cgpu_pace_batch kernel = {.key = 7, .launches = 1, .start_ns = 2 * SECOND};

    pace = (struct cgpu_pace){0};
    probe(SECOND, 700 * US);
    cgpu_pace_mark(&pace, &kernel, 2 * SECOND);
    cgpu_pace_pass(&pace, &kernel, 2 * SECOND + 3 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_estimate(&pace, 7) == 3 * MS - 600 * US);
    kernel = (struct cgpu_pace_batch){.key = 9, .launches = 1, .start_ns = 3 * SECOND};
    cgpu_pace_mark(&pace, &kernel, 3 * SECOND);
    cgpu_pace_pass(&pace, &kernel, 3 * SECOND + 400 * US, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_estimate(&pace, 9) == 100 * US);
}

/* Batches of one launch from NOW on: one after the other is seen, LATE and then US later each. */
static void
run(uint64_t now, uint64_t late, uint64_t us, int count, bool known)
{
    struct cgpu_pace_batch batches[16], next = {.launches = 1, .certain = 1};
    uint64_t ns = cgpu_pace_estimate(&pace, 7);

    for (int i = 0; i < count; i++) {
        batches[i] =
            (struct cgpu_pace_batch){.key = 7, .launches = 1, .work_ns = ns, .start_ns = now};
        batches[i].certain = ns != 0;
        cgpu_pace_mark(&pace, &batches[i], now);
    }
    for (int i = 0; i < count; i++) {
        cgpu_pace_pass(&pace, &batches[i], now + (late + (uint64_t)(i + 1) * us) * US,
                       known ? CGPU_SEEN_AT_ONCE : CGPU_SEEN_LATE);
    }
    now += (late + (uint64_t)count * us) * US;
    cgpu_pace_mark(&pace, &next, now); /* what was seen last is learnt now */
    cgpu_pace_pass(&pace, &next, now, CGPU_SEEN_AT_ONCE);
}

TEST(one_span_in_which_nobody_looked_hardly_raises_what_a_kernel_takes)
{
    pace = (struct cgpu_pace){0};
    run(SECOND, 0, 100, 3, true);
    run(2 * SECOND, 0, 33000, 1, true);
    CHECK(cgpu_pace_estimate(&pace, 7) < 300 * US);
}

/* Where ends are never seen when they come, only many batches together tell what a kernel takes. */
TEST(a_short_turn_is_enough_to_learn_that_kernels_take_less_than_was_believed)
{
    pace = (struct cgpu_pace){0};
    run(SECOND, 0, 800, 1, true);
    for (uint64_t turn = 2; turn < 12; turn++) {
        run(turn * SECOND, 700, 100, 12, false);
    }
    CHECK(cgpu_pace_estimate(&pace, 7) < 250 * US);
}
