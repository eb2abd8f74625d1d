/* Markers are looked at now and then: what is learnt does not depend on how late (SCH-11). */
#include "check.h"
#include "gate/pace.h"

#define US UINT64_C(1000)

enum { KEY = 7, KERNEL_US = 500 };

static struct cgpu_pace pace;

static struct cgpu_pace_batch
mark(uint64_t start, uint64_t now)
{
    uint64_t each = cgpu_pace_estimate(&pace, KEY);
    struct cgpu_pace_batch batch = {
        .key = KEY, .launches = 1, .work_ns = each, .start_ns = start, .certain = each != 0};

    cgpu_pace_mark(&pace, &batch, now);
    return batch;
}

/* The first is taken for 30 us longer than it is. */
static void
begin(void)
{
    struct cgpu_pace_batch batch;

    pace = (struct cgpu_pace){0};
    batch = mark(1000 * US, 1000 * US);
    cgpu_pace_pass(&pace, &batch, 1530 * US, CGPU_SEEN_AT_ONCE);
    cgpu_pace_note_poll(&pace, 1530 * US);
    CHECK(cgpu_pace_estimate(&pace, KEY) == 530 * US);
}

TEST(a_chain_of_batches_teaches_although_each_was_seen_late)
{
    struct cgpu_pace_batch batches[2];
    uint64_t end = 2000 * US;

    begin();
    batches[0] = mark(end, end);
    for (uint64_t i = 1; i < 120; i++) {
        uint64_t seen;

        batches[i % 2] = mark(end, end + 10 * US);
        end += KERNEL_US * US;
        seen = end + i * 37 % 90 * US;
        cgpu_pace_pass(&pace, &batches[(i - 1) % 2], seen, CGPU_SEEN_LATE);
        cgpu_pace_note_poll(&pace, seen);
    }
    CHECK(cgpu_pace_estimate(&pace, KEY) > 490 * US && cgpu_pace_estimate(&pace, KEY) < 510 * US);
}

TEST(a_span_that_began_with_a_late_look_lowers_nothing)
{
    struct cgpu_pace_batch first, second;

    begin();
    first = mark(2000 * US, 2000 * US);
    second = mark(2001 * US, 2001 * US);
    cgpu_pace_note_poll(&pace, 2850 * US);
    cgpu_pace_pass(&pace, &first, 2900 * US, CGPU_SEEN_LATE); /* it had ended at 2500 */
    cgpu_pace_note_poll(&pace, 2900 * US);
    cgpu_pace_pass(&pace, &second, 3000 * US, CGPU_SEEN_AT_ONCE);
    mark(3000 * US, 3000 * US); /* what was seen is learnt now */
    CHECK(cgpu_pace_estimate(&pace, KEY) == 530 * US);
}

TEST(a_marker_passed_unseen_was_passed_shortly_before_it_was_expected_to_be)
{
    struct cgpu_pace_batch batch;

    begin();
    batch = mark(2000 * US, 2000 * US);
    cgpu_pace_note_poll(&pace, 2100 * US);
    cgpu_pace_pass(&pace, &batch, 2900 * US, CGPU_SEEN_LATE);
    CHECK(pace.passed_ns < 2530 * US && pace.passed_ns >= 2500 * US);
    batch = mark(4000 * US, 4000 * US);
    cgpu_pace_note_poll(&pace, 4800 * US); /* not passed yet then */
    cgpu_pace_pass(&pace, &batch, 4900 * US, CGPU_SEEN_LATE);
    CHECK(pace.passed_ns == 4800 * US);
}
