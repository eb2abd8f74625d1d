/* The GPU time that a process reports as used, for the shares that people see (CLI-3). */
#include "check.h"
#include "gate/pace.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

static struct cgpu_pace *
fresh(void)
{
    static struct cgpu_pace pace;

    pace = (struct cgpu_pace){0};
    return &pace;
}

/* One kernel, launched and marked at START and passed at END. */
static void
work(struct cgpu_pace *pace, uint64_t start, uint64_t end)
{
    uint64_t each = cgpu_pace_estimate(pace, 7);
    struct cgpu_pace_batch batch = {
        .key = 7, .launches = 1, .work_ns = each, .start_ns = start, .certain = each != 0};

    cgpu_pace_mark(pace, &batch, start);
    cgpu_pace_pass(pace, &batch, end, CGPU_SEEN_AT_ONCE);
}

TEST(work_that_takes_much_longer_than_it_does_is_not_taken_for_longer_use)
{
    struct cgpu_pace *pace = fresh();

    work(pace, 100 * US, 200 * US);
    work(pace, MS, MS + 140 * US); /* a launch takes a while */
    CHECK(pace->busy_ns == 240 * US);
    work(pace, 2 * MS, 3 * MS); /* others' work ran meanwhile */
    CHECK(pace->busy_ns >= 340 * US && pace->busy_ns < 360 * US);
}

TEST(work_that_no_longer_counts_as_in_flight_is_use_nevertheless)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batch = {.key = 7, .launches = 1, .work_ns = 100 * US, .certain = 1};

    cgpu_pace_mark(pace, &batch, MS);
    cgpu_pace_leave(pace, &batch, 2 * MS);
    CHECK(pace->busy_ns == 100 * US);
    for (uint64_t times = 0; times < 3; times++) { /* it was stalled, and counts again: use once */
        cgpu_pace_return(pace, &batch, 3 * MS);
        cgpu_pace_leave(pace, &batch, 4 * MS);
    }
    cgpu_pace_return(pace, &batch, 5 * MS);
    cgpu_pace_pass(pace, &batch, 6 * MS, CGPU_SEEN_AT_ONCE);
    CHECK(pace->busy_ns == 100 * US);
}

/* Under the soft policy an estimate would be charged for work that is stalled. */
TEST(work_that_no_longer_counts_as_in_flight_is_no_use_where_spans_are_counted_sch4)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batch = {.key = 7, .launches = 1, .work_ns = 100 * US, .certain = 1};

    pace->spans = true;
    cgpu_pace_mark(pace, &batch, MS);
    cgpu_pace_leave(pace, &batch, 2 * MS);
    CHECK(pace->busy_ns == 0);
}
