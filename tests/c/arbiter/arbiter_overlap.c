/* Who comes back from a rest is let in beside a long kernel, if that is of use. */
#include "arbiter_rests.h"

TEST(who_comes_back_is_let_in_beside_a_long_kernel)
{
    uint64_t before[2], paid[2];

    begin();
    CHECK(come_back() < KERNEL_NS / 3); /* until both are level, and 1 ms */
    CHECK(demands[busy].active && gates[busy] == CGPU_GATE_CLOSED);
    CHECK((cgpu_arbiter_metered(arbiter, rests) & CGPU_METERED_SLICED) != 0);
    CHECK((cgpu_arbiter_metered(arbiter, busy) & CGPU_METERED_SLICED) == 0);
    before[0] = charged(rests);
    before[1] = charged(busy);
    work(2 * BURST_NS);
    paid[0] = charged(rests) - before[0];
    paid[1] = charged(busy) - before[1];
    CHECK(paid[0] <= paid[1] && paid[1] - paid[0] < MS / 5);
    is_quiet(rests);
    step(0);
    before[1] = charged(busy);
    step(MS);
    CHECK(charged(busy) - before[1] >= MS * 9 / 10); /* and pays alone for the rest */
    CHECK(gates[rests] == CGPU_GATE_CLOSED && gates[busy] == CGPU_GATE_CLOSED);
    CHECK(come_back() == 0); /* it need not wait again */
}

TEST(where_that_is_of_no_use_it_waits_for_the_ends_of_kernels)
{
    begin();
    for (uint64_t waited = 0; waited < KERNEL_NS / 2;) {
        waited = come_back();
        while (demands[busy].active) { /* the GPU runs kernels in order of arrival */
            work(MS);
        }
        work(BURST_NS);
        rest();
    }
}

TEST(who_never_rests_waits_for_the_ends_of_kernels)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&busy, &rests);
    works(busy, now + 2 * KERNEL_NS);
    step(KERNEL_NS);
    CHECK(gates[busy] == CGPU_GATE_CLOSED);
    demands[busy].waiting = true;
    step(5 * MS);
    CHECK(gates[rests] == CGPU_GATE_CLOSED);
}
