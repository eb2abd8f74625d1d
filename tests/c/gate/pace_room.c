/* How much a process may have in flight (SCH-8): a bounded time, whatever its kernels are. */
#include "check.h"
#include "gate/pace.h"

#define US     UINT64_C(1000)
#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static struct cgpu_pace pace;

static struct cgpu_pace_batch
marked(uint64_t work, bool certain, uint64_t now)
{
    struct cgpu_pace_batch batch = {
        .key = 7, .launches = 1, .work_ns = work, .start_ns = now, .certain = certain};

    cgpu_pace_mark(&pace, &batch, now);
    return batch;
}

TEST(launches_go_on_while_half_a_millisecond_is_in_flight)
{
    pace = (struct cgpu_pace){0};
    marked(250 * US, true, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == 0);
    marked(250 * US, true, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == 0);
    marked(250 * US, true, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == SECOND + 250 * US);
    CHECK(pace.end_ns == SECOND + 750 * US);
}

TEST(a_long_kernel_is_followed_by_the_next_shortly_before_it_ends)
{
    struct cgpu_pace_batch first;

    pace = (struct cgpu_pace){0};
    first = marked(50 * MS, true, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) ==
          SECOND + MS); /* never trusts an estimate for long */
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 49 * MS) ==
          SECOND + 49 * MS + 500 * US);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 49 * MS + 500 * US) == 0);
    marked(50 * MS, true, SECOND + 49 * MS + 500 * US);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 49 * MS + 500 * US) != 0);
    cgpu_pace_pass(&pace, &first, SECOND + 50 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(pace.end_ns == SECOND + 100 * MS);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 60 * MS) != 0);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 99 * MS + 500 * US) == 0);
}

/* Ten microseconds were expected, and each takes ten milliseconds: all that is in flight stays
 * below five batches, though by the clock there would be room for a thousand. */
TEST(wrong_estimates_do_not_pile_work_up)
{
    uint64_t now = SECOND;
    int batches = 0;

    pace = (struct cgpu_pace){0};
    while (now < 2 * SECOND) {
        uint64_t at = cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, now);

        if (at == 0) {
            marked(250 * US, true, now);
            batches += 1;
        } else {
            CHECK(at > now && at <= now + MS);
            now = at;
        }
    }
    CHECK(batches >= 2 && batches <= 5);
}

TEST(what_is_not_known_is_measured_alone)
{
    struct cgpu_pace_batch batch;
    uint64_t looks = 0;

    pace = (struct cgpu_pace){0};
    batch = marked(0, false, SECOND);
    for (uint64_t now = SECOND; now < SECOND + 200 * MS; looks++) {
        uint64_t at = cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, now);

        CHECK(at >= now + 20 * US && at <= now + MS);
        now = at;
    }
    CHECK(looks < 300); /* looked for rarer and rarer */
    cgpu_pace_pass(&pace, &batch, SECOND + 200 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 200 * MS) == 0);
    CHECK(cgpu_pace_estimate(&pace, 7) == 200 * MS);
}

TEST(no_more_batches_are_in_flight_than_there_is_room_for_markers)
{
    pace = (struct cgpu_pace){0};
    for (int i = 0; i < CGPU_PACE_BATCHES; i++) {
        CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) == 0);
        marked(1, true, SECOND);
    }
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) != 0);
}

TEST(when_all_is_passed_nothing_is_left)
{
    struct cgpu_pace_batch first, second;

    pace = (struct cgpu_pace){0};
    first = marked(50 * MS, true, SECOND);
    second = marked(0, false, SECOND);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND) != 0);
    cgpu_pace_pass(&pace, &first, SECOND + 10 * MS, CGPU_SEEN_AT_ONCE);
    cgpu_pace_pass(&pace, &second, SECOND + 10 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, SECOND + 10 * MS) == 0);
    CHECK(pace.in_flight == 0 && pace.uncertain == 0 && pace.end_ns == SECOND + 10 * MS);
    CHECK(pace.busy_ns == 10 * MS);
}

TEST(where_nobody_waits_ten_milliseconds_are_in_flight)
{
    uint64_t batches = 0;

    pace = (struct cgpu_pace){0};
    while (cgpu_pace_room(&pace, CGPU_PACE_AHEAD_NS, SECOND) == 0) {
        marked(250 * US, true, SECOND);
        batches += 1;
    }
    CHECK(batches * 250 * US > CGPU_PACE_AHEAD_NS && batches < CGPU_PACE_BATCHES);
    CHECK(batches * 250 * US < 20 * MS);
}
