/* What kernels are taken for that were never measured. */
#include "check.h"
#include "gate/gate_times.h"
#include "gate/guess.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

static struct cgpu_guess guess;

static void
judge(uint64_t ns, uint64_t count, int times)
{
    for (int i = 0; i < times; i++) {
        cgpu_guess_learn(&guess, ns, count);
    }
}

/* How many of the next 640 unknown kernels are launched without being measured. */
static int
guessed(void)
{
    int count = 0;

    for (int i = 0; i < 640; i++) {
        count += cgpu_guess_next(&guess) != 0;
    }
    return count;
}

static void
begin(void)
{
    guess = (struct cgpu_guess){0};
}

TEST(the_first_kernels_are_measured_one_by_one)
{
    begin();
    CHECK(guessed() == 0);
    judge(20 * US, 1, 7);
    CHECK(guessed() == 0);
}

TEST(after_enough_that_were_alike_most_are_guessed_and_some_still_measured)
{
    begin();
    judge(20 * US, 1, 8);
    CHECK(guessed() == 630);
    CHECK(cgpu_guess_next(&guess) == 20 * US);
}

TEST(one_that_takes_far_longer_ends_that_and_does_not_lift_the_guess)
{
    begin();
    judge(20 * US, 1, 8);
    judge(20 * MS, 1, 1);
    CHECK(guessed() == 0);
    judge(20 * US, 1, 8);
    CHECK(cgpu_guess_next(&guess) == 20 * US);
}

TEST(a_little_longer_is_learnt)
{
    begin();
    judge(20 * US, 1, 8);
    judge(60 * US, 1, 20);
    CHECK(guessed() == 630);
    CHECK(cgpu_guess_next(&guess) > 55 * US);
}

TEST(far_too_long_a_guess_comes_down)
{
    begin();
    judge(20 * MS, 1, 1);
    judge(20 * US, 16, 300);
    CHECK(guessed() > 0);
    CHECK(cgpu_guess_next(&guess) < 100 * US);
}
