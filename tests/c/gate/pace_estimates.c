/* What kernels take is learnt from the time between markers (SCH-8, SCH-11). */
#include <stdlib.h>

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

/* A batch of LAUNCHES of KEY, launched and marked at START and passed at END. */
static void
lone(struct cgpu_pace *pace, uint64_t key, uint64_t launches, uint64_t start, uint64_t end)
{
    uint64_t each = cgpu_pace_estimate(pace, key);
    struct cgpu_pace_batch batch = {
        .key = key,
        .launches = launches,
        .work_ns = each * launches,
        .start_ns = start,
        .certain = each != 0,
    };

    cgpu_pace_mark(pace, &batch, start);
    cgpu_pace_pass(pace, &batch, end, CGPU_SEEN_AT_ONCE);
}

/* What was seen to pass at one time is learnt when the next batch is marked. */
static void
next(struct cgpu_pace *pace, uint64_t now)
{
    lone(pace, 0, 1, now, now);
}

/* COUNT batches of LAUNCHES of KEY that take EACH, never less than two in flight; from START. */
static uint64_t
queue(struct cgpu_pace *pace, uint64_t key, uint64_t launches, uint64_t each, int count,
      uint64_t start)
{
    struct cgpu_pace_batch batches[2];
    uint64_t now = start;

    for (int i = 0; i <= count; i++) {
        uint64_t estimate = cgpu_pace_estimate(pace, key);

        batches[i % 2] = (struct cgpu_pace_batch){
            .key = key,
            .launches = launches,
            .work_ns = estimate * launches,
            .start_ns = now,
            .certain = estimate != 0,
        };
        cgpu_pace_mark(pace, &batches[i % 2], now);
        if (i > 0) {
            now += launches * each;
            cgpu_pace_note_poll(pace, now - US);
            cgpu_pace_pass(pace, &batches[(i - 1) % 2], now, CGPU_SEEN_AT_ONCE);
        }
    }
    now += launches * each;
    cgpu_pace_pass(pace, &batches[count % 2], now, CGPU_SEEN_AT_ONCE);
    next(pace, now);
    return now;
}

TEST(nothing_is_known_at_first)
{
    struct cgpu_pace *pace = fresh();

    CHECK(cgpu_pace_estimate(pace, cgpu_pace_key(pace, 32)) == 0);
    CHECK(cgpu_pace_room(pace, CGPU_PACE_FLIGHT_NS, 1) == 0);
}

TEST(a_key_is_never_none)
{
    CHECK(cgpu_pace_key(NULL, 0) != 0);
    CHECK(cgpu_pace_key(fresh(), 32) != cgpu_pace_key(fresh(), 64));
}

TEST(a_kernel_that_ran_alone_is_known_at_once)
{
    struct cgpu_pace *pace = fresh();

    lone(pace, 7, 1, 100 * US, 140 * US);
    CHECK(cgpu_pace_estimate(pace, 7) == 40 * US);
    CHECK(pace->busy_ns == 40 * US);
}

/* A thread that waits for room wakes 50 us late: no check comes soon after the end. */
TEST(a_kernel_whose_end_is_seen_late_is_known_too)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batch = {.key = 7, .launches = 1, .start_ns = 100 * US};

    cgpu_pace_mark(pace, &batch, 100 * US);
    cgpu_pace_pass(pace, &batch, 180 * US, CGPU_SEEN_LATE);
    CHECK(cgpu_pace_estimate(pace, 7) == 80 * US);
    queue(pace, 7, 25, 10 * US, 20, MS);
    CHECK(cgpu_pace_estimate(pace, 7) <= 11 * US);
}

TEST(queued_batches_teach_what_their_kernels_take)
{
    struct cgpu_pace *pace = fresh();
    uint64_t estimate;

    lone(pace, 7, 1, 100 * US, 160 * US); /* with what launching costs */
    queue(pace, 7, 25, 10 * US, 20, MS);
    estimate = cgpu_pace_estimate(pace, 7);
    CHECK(estimate >= 10 * US && estimate <= 11 * US);
    CHECK(pace->busy_ns == 60 * US + 21 * 250 * US);
}

TEST(an_estimate_falls_quickly_and_rises_slowly)
{
    struct cgpu_pace *pace = fresh();

    lone(pace, 7, 1, 1 * MS, 2 * MS);
    queue(pace, 7, 1, 100 * US, 3, 10 * MS);
    CHECK(cgpu_pace_estimate(pace, 7) < 250 * US);
    lone(pace, 9, 1, 20 * MS, 20 * MS + 100 * US);
    queue(pace, 9, 1, 200 * US, 1, 30 * MS);
    CHECK(cgpu_pace_estimate(pace, 9) < 140 * US);
    queue(pace, 9, 1, 200 * US, 40, 40 * MS);
    CHECK(cgpu_pace_estimate(pace, 9) > 190 * US);
}

TEST(a_program_that_is_slow_to_launch_does_not_make_its_kernels_long)
{
    struct cgpu_pace *pace = fresh();

    lone(pace, 7, 1, 100 * US, 110 * US);
    for (uint64_t i = 1; i < 50; i++) {
        lone(pace, 7, 25, i * 10 * MS, i * 10 * MS + 2500 * US); /* gaps of 90 us between them */
    }
    CHECK(cgpu_pace_estimate(pace, 7) == 10 * US);
}

TEST(what_was_seen_late_teaches_nothing_upward)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batch = {.key = 7, .launches = 1, .start_ns = 100};

    cgpu_pace_mark(pace, &batch, 100);
    cgpu_pace_pass(pace, &batch, 900 * MS, CGPU_SEEN_LATE);
    next(pace, 900 * MS);
    CHECK(cgpu_pace_estimate(pace, 7) == 0 && pace->busy_ns < MS);
    lone(pace, 7, 1, 1000 * MS, 1001 * MS);
    batch = (struct cgpu_pace_batch){
        .key = 7, .launches = 1, .work_ns = MS, .start_ns = 1100 * MS, .certain = 1};
    cgpu_pace_mark(pace, &batch, 1100 * MS);
    cgpu_pace_pass(pace, &batch, 1900 * MS, CGPU_SEEN_LATE);
    next(pace, 1900 * MS);
    CHECK(cgpu_pace_estimate(pace, 7) > 990 * US && cgpu_pace_estimate(pace, 7) <= MS);
}

/* Pairs of batches of 100 us: the first is SEEN to have passed at FIRST, after a look at LOOKED. */
static void
see_pairs(struct cgpu_pace *pace, uint64_t looked, uint64_t first, enum cgpu_pace_seen seen)
{
    struct cgpu_pace_batch pair[2];

    lone(pace, 7, 1, 100 * US, 200 * US);
    for (uint64_t now = MS; now < 20 * MS; now += MS) {
        for (int i = 0; i < 2; i++) {
            pair[i] = (struct cgpu_pace_batch){
                .key = 7, .launches = 1, .work_ns = 100 * US, .start_ns = now, .certain = 1};
            cgpu_pace_mark(pace, &pair[i], now);
        }
        cgpu_pace_note_poll(pace, now + looked);
        cgpu_pace_pass(pace, &pair[0], now + first, seen);
        cgpu_pace_note_poll(pace, now + first);
        cgpu_pace_pass(pace, &pair[1], now + 200 * US, CGPU_SEEN_AT_ONCE);
    }
}

/* Of a batch whose predecessor was seen passed late, too short a time is seen. */
TEST(a_late_look_does_not_shorten_what_comes_after)
{
    struct cgpu_pace *pace = fresh();

    see_pairs(pace, 0, 190 * US, CGPU_SEEN_LATE);
    CHECK(cgpu_pace_estimate(pace, 7) > 99 * US && cgpu_pace_estimate(pace, 7) <= 100 * US);
}

/* The end of the first is taken for known, as the last look was 70 us before; it was 60 us late. */
TEST(a_look_that_is_a_little_late_does_not_shorten_what_comes_after_either)
{
    struct cgpu_pace *pace = fresh();

    see_pairs(pace, 90 * US, 160 * US, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_estimate(pace, 7) > 99 * US && cgpu_pace_estimate(pace, 7) <= 110 * US);
}

/* What was launched into other streams, too little to be marked, runs before the marked work of
 * the first ends. Marked only then, it was taken for nothing. */
TEST(work_of_other_streams_that_is_marked_late_does_not_shorten_what_it_takes)
{
    struct cgpu_pace *pace = fresh();

    lone(pace, 7, 1, 100 * US, 300 * US);
    for (uint64_t now = MS; now < 50 * MS; now += 5 * MS) {
        uint64_t seen = now + 800 * US;

        lone(pace, 7, 1, now, seen); /* of stream 0 */
        for (uint32_t stream = 1; stream < 4; stream++) {
            struct cgpu_pace_batch late = {.key = 7,
                                           .launches = 1,
                                           .work_ns = 200 * US,
                                           .start_ns = now,
                                           .certain = 1,
                                           .stream = stream};

            cgpu_pace_mark(pace, &late, seen + 10 * US * stream);
            cgpu_pace_pass(pace, &late, seen + 10 * US * stream + 3 * US, CGPU_SEEN_AT_ONCE);
        }
    }
    CHECK(cgpu_pace_estimate(pace, 7) >= 190 * US);
}

/* They ran before a chain of batches without gaps began: counted in it, they would shorten it. */
TEST(work_that_is_marked_late_is_not_counted_in_the_chain_that_follows)
{
    enum { LATE = 12, MORE = 6 };
    struct cgpu_pace *pace = fresh();

    lone(pace, 7, 1, 100 * US, 300 * US);
    for (uint64_t start = MS; start < 100 * MS; start += 10 * MS) {
        struct cgpu_pace_batch late[LATE], more[2];
        uint64_t now = start + 200 * US * (1 + LATE);

        lone(pace, 7, 1 + LATE, start, now);
        for (uint32_t i = 0; i < LATE; i++) {
            late[i] = (struct cgpu_pace_batch){
                .key = 7, .launches = 1, .start_ns = start, .certain = 1, .stream = 1 + i};
            cgpu_pace_mark(pace, &late[i], now);
        }
        more[0] = (struct cgpu_pace_batch){.key = 7, .launches = 1, .start_ns = now, .certain = 1};
        cgpu_pace_mark(pace, &more[0], now);
        for (int i = 0; i < LATE; i++) {
            cgpu_pace_pass(pace, &late[i], now + US, CGPU_SEEN_AT_ONCE);
        }
        for (int i = 1; i <= MORE; i++) {
            more[i % 2] = more[0];
            more[i % 2].start_ns = now;
            cgpu_pace_mark(pace, &more[i % 2], now);
            now += 200 * US;
            cgpu_pace_pass(pace, &more[(i - 1) % 2], now, CGPU_SEEN_AT_ONCE);
        }
        cgpu_pace_pass(pace, &more[MORE % 2], now + 200 * US, CGPU_SEEN_AT_ONCE);
        CHECK(cgpu_pace_estimate(pace, 7) >= 195 * US);
    }
}

/* The first would be taken for twice as long as it was, and the second for nothing, again and
 * again: batches would shrink to a launch each. */
TEST(batches_seen_passed_in_one_look_share_the_time)
{
    struct cgpu_pace *pace = fresh();
    uint64_t now = 100 * US;

    lone(pace, 7, 1, now, now + 10 * US);
    for (int i = 0; i < 100; i++) {
        struct cgpu_pace_batch pair[2];

        for (int j = 0; j < 2; j++) {
            uint64_t estimate = cgpu_pace_estimate(pace, 7);

            pair[j] = (struct cgpu_pace_batch){
                .key = 7, .launches = 25, .work_ns = estimate * 25, .start_ns = now, .certain = 1};
            cgpu_pace_mark(pace, &pair[j], now);
        }
        now += 500 * US;
        cgpu_pace_pass(pace, &pair[0], now, CGPU_SEEN_AT_ONCE);
        cgpu_pace_pass(pace, &pair[1], now + 100, CGPU_SEEN_AT_ONCE);
    }
    CHECK(cgpu_pace_estimate(pace, 7) < 12 * US);
}

TEST(mixed_batches_teach_nothing)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batches[2];
    uint64_t now = MS;

    lone(pace, 7, 1, 100 * US, 200 * US);
    for (int i = 0; i < 60; i++) {
        batches[i % 2] = (struct cgpu_pace_batch){
            .key = 0, .launches = 3, .work_ns = 200 * US, .start_ns = now, .certain = 1};
        cgpu_pace_mark(pace, &batches[i % 2], now);
        if (i > 0) {
            now += 100 * US; /* streams that overlap */
            cgpu_pace_pass(pace, &batches[(i - 1) % 2], now, CGPU_SEEN_AT_ONCE);
        }
    }
    CHECK(cgpu_pace_estimate(pace, 7) == 100 * US);
}

TEST(hundreds_of_kernels_are_known_together)
{
    struct cgpu_pace *pace = fresh();
    int known = 0;

    for (uint64_t i = 0; i < 400; i++) {
        lone(pace, cgpu_pace_key((void *)(uintptr_t)(0x7f0000001000 + 0x4c0 * i), 4096), 1,
             i * MS + 1, i * MS + 1 + 50 * US);
    }
    for (uint64_t i = 0; i < 400; i++) {
        known +=
            cgpu_pace_estimate(
                pace, cgpu_pace_key((void *)(uintptr_t)(0x7f0000001000 + 0x4c0 * i), 4096)) != 0;
    }
    CHECK(known >= 395);
}

static uint64_t
odd_number(void)
{
    static const uint64_t odd[] = {0, 1, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63, 250000};
    unsigned pick = (unsigned)rand() % 12;

    return pick < 6 ? odd[pick] : (uint64_t)rand() << (pick * 4);
}

/* Run under the sanitizers: nothing overflows, nothing is divided by zero. */
TEST(no_input_breaks_the_bookkeeping)
{
    struct cgpu_pace *pace = fresh();
    struct cgpu_pace_batch batch = {0};

    srand(1);
    for (int i = 0; i < 200000; i++) {
        switch (rand() % 5) {
        case 0:
            batch = (struct cgpu_pace_batch){.key = odd_number(),
                                             .launches = odd_number(),
                                             .work_ns = odd_number(),
                                             .start_ns = odd_number(),
                                             .certain = (uint32_t)odd_number(),
                                             .stream = (uint32_t)odd_number(),
                                             .expected_ns = odd_number()};
            cgpu_pace_mark(pace, &batch, odd_number());
            break;
        case 1:
            cgpu_pace_pass(pace, &batch, odd_number(), (enum cgpu_pace_seen)(rand() % 3));
            break;
        case 2:
            CHECK(pace->in_flight != 0 || cgpu_pace_room(pace, odd_number(), odd_number()) == 0);
            break;
        case 3:
            cgpu_pace_note_poll(pace, odd_number());
            CHECK(cgpu_pace_drain_poll_at(pace, odd_number(), odd_number()) != 0);
            break;
        default:
            cgpu_pace_leave(pace, &batch, odd_number());
            if (rand() % 2 == 0) {
                cgpu_pace_return(pace, &batch, odd_number());
            }
        }
    }
}
