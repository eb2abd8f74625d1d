/* Turns by the clock while nobody arbitrates (REL-2). */
#include "check.h"
#include "gate/fallback.h"
#include "policy/policy.h"

#define MS UINT64_C(1000000)

TEST(each_has_its_part_of_the_period_and_no_other)
{
    const uint32_t share[] = {250000, 400000, 350000};
    const uint32_t offset[] = {0, 250000, 650000};
    int open[3] = {0};

    for (uint64_t at = 0; at < 300; at++) {
        int together = 0;

        for (int i = 0; i < 3; i++) {
            uint64_t until;
            enum cgpu_gate gate = cgpu_fallback_gate(at * MS, share[i], offset[i], &until);

            open[i] += gate == CGPU_GATE_OPEN;
            together += gate == CGPU_GATE_OPEN;
            CHECK(until > at * MS && until <= (at + 100) * MS);
            CHECK(cgpu_fallback_gate(until, share[i], offset[i], &until) != gate);
        }
        CHECK(together == 1);
    }
    CHECK(open[0] == 75 && open[1] == 120 && open[2] == 105);
}

TEST(a_part_may_go_over_the_end_of_the_period)
{
    uint64_t until;

    CHECK(cgpu_fallback_gate(95 * MS, 200000, 900000, &until) == CGPU_GATE_OPEN);
    CHECK(until == 110 * MS);
    CHECK(cgpu_fallback_gate(105 * MS, 200000, 900000, &until) == CGPU_GATE_OPEN);
    CHECK(until == 110 * MS);
    CHECK(cgpu_fallback_gate(110 * MS, 200000, 900000, &until) == CGPU_GATE_CLOSED);
    CHECK(until == 190 * MS);
}

TEST(all_is_open_for_ever_and_nothing_is_closed)
{
    uint64_t until = 0;

    CHECK(cgpu_fallback_gate(5, CGPU_WHOLE_PPM, 0, &until) == CGPU_GATE_OPEN);
    CHECK(until == UINT64_MAX);
    CHECK(cgpu_fallback_gate(5, UINT32_MAX, UINT32_MAX, &until) == CGPU_GATE_OPEN);
    CHECK(cgpu_fallback_gate(5, 0, 0, &until) == CGPU_GATE_CLOSED && until == UINT64_MAX);
    (void)cgpu_fallback_gate(UINT64_MAX, 10, UINT32_MAX, &until);
    CHECK(until == UINT64_MAX);
}

TEST(an_arbiter_is_gone_that_gave_no_sign_for_150_ms)
{
    CHECK(cgpu_fallback_needed(0, 1000 * MS));
    CHECK(!cgpu_fallback_needed(1000 * MS, 1150 * MS));
    CHECK(cgpu_fallback_needed(1000 * MS, 1151 * MS));
    CHECK(!cgpu_fallback_needed(1001 * MS, 1000 * MS)); /* it was read after the clock */
    CHECK(cgpu_fallback_needed(9000 * MS, 1000 * MS));
}
