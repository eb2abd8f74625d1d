/*
 * What is learnt of a kernel that is alone in its turns (SCH-11): it begins behind the work of
 * others, its end is seen while its container's gate is closed, and threads wake up late.
 */
#include "check.h"
#include "gate/pace.h"

#define US        UINT64_C(1000)
#define MS        UINT64_C(1000000)
#define SECOND    UINT64_C(1000000000)
#define BEHIND_NS (170 * US) /* from the launch to its begin */
#define LATE_NS   (70 * US)  /* a sleep ends so late */

enum { KEY = 7, TURNS = 100 };

static struct cgpu_pace pace;
static int looks;

/* A turn with one kernel of NS from NOW on, looked at as a closed gate has it. */
static void
turn(uint64_t now, uint64_t ns)
{
    uint64_t estimate = cgpu_pace_estimate(&pace, KEY), closed = now, end = now + BEHIND_NS + ns;
    struct cgpu_pace_batch batch = {
        .key = KEY, .launches = 1, .work_ns = estimate, .start_ns = now, .certain = estimate != 0};

    cgpu_pace_mark(&pace, &batch, now);
    while (now < end) {
        cgpu_pace_note_poll(&pace, now);
        now = cgpu_pace_drain_poll_at(&pace, closed, now) + LATE_NS;
        looks += 1;
    }
    cgpu_pace_pass(&pace, &batch, now, CGPU_SEEN_AT_ONCE);
    cgpu_pace_note_poll(&pace, now);
}

/* Taken for FIRST_NS at first. What is learnt in the end; TURNS begin SECOND after each other. */
static uint64_t
learn(uint64_t first_ns, uint64_t ns)
{
    struct cgpu_pace_batch first = {.key = KEY, .launches = 1, .start_ns = MS};

    pace = (struct cgpu_pace){0};
    cgpu_pace_mark(&pace, &first, MS);
    cgpu_pace_pass(&pace, &first, MS + first_ns, CGPU_SEEN_AT_ONCE);
    looks = 0;
    for (uint64_t i = 1; i <= TURNS; i++) {
        turn(i * SECOND, ns);
    }
    return cgpu_pace_estimate(&pace, KEY);
}

/* Whoever looks when it should have ended finds that it has. */
TEST(an_estimate_that_is_too_long_does_not_confirm_itself)
{
    CHECK(learn(20400 * US, 20 * MS) < 20 * MS + BEHIND_NS + 2 * LATE_NS);
    CHECK(learn(200400 * US, 200 * MS) < 200 * MS + BEHIND_NS + 2 * LATE_NS);
}

/* What comes before and after is no part of it. */
TEST(an_estimate_that_is_right_stays_right)
{
    CHECK(learn(15 * MS, 15 * MS) == 15 * MS);
    CHECK(learn(20 * MS, 20 * MS) == 20 * MS);
}

TEST(a_kernel_that_has_become_longer_is_learnt)
{
    uint64_t estimate = learn(20 * MS, 30 * MS);

    CHECK(estimate > 29 * MS && estimate < 30 * MS + BEHIND_NS);
}

TEST(few_looks_are_enough)
{
    learn(20 * MS, 20 * MS);
    CHECK(looks < TURNS * 60);
    learn(2 * MS, 200 * MS);
    CHECK(looks < TURNS * 600);
}
