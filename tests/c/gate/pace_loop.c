/*
 * A program that launches without a pause, as pace lets it, and sleeps that end late (SCH-8): the
 * GPU has always something to do, and never more than what it may have.
 */
#include "check.h"
#include "gate/pace.h"

#define US       UINT64_C(1000)
#define MS       UINT64_C(1000000)
#define SECOND   UINT64_C(1000000000)
#define SLACK_NS (150 * US)
#define KNOWN_NS (60 * US) /* see shim/cuda/compute/marker.c */

enum { KEY = 7, FLIGHTS = 64, KNOWN_PART = 32 };

static struct cgpu_pace pace;

struct flight {
    struct cgpu_pace_batch batch;
    uint64_t marked_ns, end_ns;
};

static struct program {
    uint64_t now, kernel_ns;
    uint64_t late_ns;                  /* it wakes up so much later than it meant to */
    uint64_t gpu_ns, idle_ns, most_ns; /* the GPU has work until; had none; had at most */
    uint64_t harvested_ns;
    struct cgpu_pace_batch batch;
    struct flight flights[FLIGHTS];
    uint64_t head, tail;
} program;

static void
mark(void)
{
    CHECK(program.tail - program.head < FLIGHTS);
    cgpu_pace_mark(&pace, &program.batch, program.now);
    program.flights[program.tail++ % FLIGHTS] =
        (struct flight){program.batch, program.now, program.gpu_ns};
    program.batch = (struct cgpu_pace_batch){0};
}

static void
harvest(void)
{
    uint64_t pause = program.now - program.harvested_ns;

    for (; program.head < program.tail; program.head++) {
        const struct flight *flight = &program.flights[program.head % FLIGHTS];
        bool known;

        if (flight->end_ns > program.now) {
            break;
        }
        known = pause < KNOWN_NS || pause < (program.now - flight->marked_ns) / KNOWN_PART;
        cgpu_pace_pass(&pace, &flight->batch, program.now,
                       known ? CGPU_SEEN_AT_ONCE : CGPU_SEEN_LATE);
    }
    cgpu_pace_note_poll(&pace, program.now);
    program.harvested_ns = program.now;
}

static void
run_kernel(void)
{
    uint64_t ns = cgpu_pace_estimate(&pace, KEY);

    if (program.batch.launches == 0) {
        program.batch = (struct cgpu_pace_batch){.key = KEY, .start_ns = program.now, .certain = 1};
    }
    program.batch.launches += 1;
    program.batch.work_ns += ns;
    program.batch.certain = program.batch.certain && ns != 0;
    if (program.gpu_ns < program.now) {
        program.idle_ns += program.now - program.gpu_ns;
        program.gpu_ns = program.now;
    }
    program.gpu_ns += program.kernel_ns;
    if (program.most_ns < program.gpu_ns - program.now) {
        program.most_ns = program.gpu_ns - program.now;
    }
    program.now += US;
}

static void
launch_until(uint64_t end)
{
    while (program.now < end) {
        const struct cgpu_pace_batch *batch = &program.batch;
        uint64_t until = 0;

        if (batch->launches != 0 && (!batch->certain || batch->work_ns >= CGPU_PACE_BATCH_NS)) {
            mark();
        }
        if (batch->launches == 0) { /* the others take the hot path */
            harvest();
            until = cgpu_pace_room(&pace, CGPU_PACE_FLIGHT_NS, program.now);
        }
        if (until != 0) {
            program.now = until + program.late_ns;
        } else {
            run_kernel();
        }
    }
}

/* Kernels of KERNEL_NS that are taken for FIRST_NS at first. */
static void
run(uint64_t kernel_ns, uint64_t first_ns, uint64_t late_ns)
{
    struct cgpu_pace_batch first = {.key = KEY, .launches = 1, .start_ns = MS};
    uint64_t begin = 2 * MS + first_ns;

    pace = (struct cgpu_pace){0};
    cgpu_pace_mark(&pace, &first, MS);
    cgpu_pace_pass(&pace, &first, MS + first_ns, CGPU_SEEN_AT_ONCE);
    CHECK(cgpu_pace_estimate(&pace, KEY) == first_ns);
    program = (struct program){.now = begin,
                               .gpu_ns = begin,
                               .harvested_ns = begin,
                               .kernel_ns = kernel_ns,
                               .late_ns = late_ns};
    launch_until(SECOND); /* it learns */
    program.idle_ns = 0;
    program.most_ns = 0;
    launch_until(2 * SECOND);
}

/* Kernels of all lengths, taken for so many eighths of what they are at first. */
static void
run_all(uint64_t eighths)
{
    static const uint64_t kernels[] = {50 * US,  300 * US, 450 * US, 475 * US, 500 * US,
                                       525 * US, 550 * US, 800 * US, 1 * MS,   5 * MS};

    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        uint64_t batch = kernels[i] > CGPU_PACE_BATCH_NS ? kernels[i] : CGPU_PACE_BATCH_NS;

        for (uint64_t late = 0; late <= 200 * US; late += 50 * US) {
            run(kernels[i], kernels[i] * eighths / 8, late);
            CHECK(program.idle_ns == 0);
            CHECK(program.most_ns < CGPU_PACE_FLIGHT_NS + batch + SLACK_NS + late);
        }
    }
}

TEST(the_gpu_has_always_something_to_do_and_never_too_much)
{
    run_all(8);
}

/* It would confirm itself: the next launch comes when it is over, and so does the next look. */
TEST(a_kernel_that_is_taken_for_too_long_does_not_leave_the_gpu_idle)
{
    run_all(9);
    run_all(15);
    run_all(200);
}

TEST(a_kernel_that_is_taken_for_too_short_does_not_pile_work_up)
{
    run_all(4);
}
