/* What each policy gives the running containers (SCH-0..6, DRA-2). */
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "policy/policy.h"
#include "status.h"

enum { RUNNING = 3, MAX_INST = 20 };

static struct cgpu_claim claims[RUNNING];

/* Containers of weights 1, 2 and 5 under POLICY; the last is idle. */
static void
entitle(uint32_t policy)
{
    static const uint32_t weights[RUNNING] = {1, 2, 5};

    memset(claims, 0, sizeof claims);
    for (int i = 0; i < RUNNING; i++) {
        claims[i].weight = weights[i];
    }
    CHECK(cgpu_policy_entitle(policy, claims, RUNNING, MAX_INST) == CGPU_OK);
}

static bool
are(uint32_t a, uint32_t b, uint32_t c, size_t offset)
{
    const uint32_t expected[RUNNING] = {a, b, c};

    for (int i = 0; i < RUNNING; i++) {
        if (*(const uint32_t *)(const void *)((const char *)&claims[i] + offset) != expected[i]) {
            return false;
        }
    }
    return true;
}

#define COMPETES(a, b, c) are(a, b, c, offsetof(struct cgpu_claim, competes))
#define CEILINGS(a, b, c) are(a, b, c, offsetof(struct cgpu_claim, ceiling_ppm))
#define FALLBACK(a, b, c) are(a, b, c, offsetof(struct cgpu_claim, fallback_ppm))

TEST(fair_share_gives_each_running_container_one_part_of_max_inst_sch0)
{
    entitle(CGPU_POLICY_FAIR_SHARE);
    CHECK(COMPETES(100, 100, 100));
    CHECK(CEILINGS(50000, 50000, 50000));
    CHECK(FALLBACK(50000, 50000, 50000));
}

TEST(preemptive_shares_equally_without_ceilings_sch1)
{
    entitle(CGPU_POLICY_PREEMPTIVE);
    CHECK(COMPETES(100, 100, 100));
    CHECK(CEILINGS(1000000, 1000000, 1000000));
    CHECK(FALLBACK(333333, 333333, 333333));
}

TEST(weighted_preemptive_keeps_the_part_of_an_idle_one_sch2)
{
    entitle(CGPU_POLICY_WEIGHTED_PREEMPTIVE);
    CHECK(COMPETES(100, 200, 500));
    CHECK(CEILINGS(125000, 250000, 625000));
    CHECK(FALLBACK(125000, 250000, 625000));
}

TEST(weighted_preemptive_gives_a_lone_running_container_everything_sch2)
{
    struct cgpu_claim lone = {.weight = 3};

    CHECK(cgpu_policy_entitle(CGPU_POLICY_WEIGHTED_PREEMPTIVE, &lone, 1, MAX_INST) == CGPU_OK);
    CHECK(lone.ceiling_ppm == CGPU_WHOLE_PPM && lone.fallback_ppm == CGPU_WHOLE_PPM);
}

/* SCH-7: idle or not, what it uses of the GPU is no part of anybody's. */
TEST(weighted_preemptive_gives_a_high_priority_container_no_part_sch2_sch7)
{
    entitle(CGPU_POLICY_WEIGHTED_PREEMPTIVE);
    claims[2].high_priority = 1;
    CHECK(cgpu_policy_entitle(CGPU_POLICY_WEIGHTED_PREEMPTIVE, claims, RUNNING, MAX_INST) ==
          CGPU_OK);
    CHECK(COMPETES(100, 200, 500));
    CHECK(CEILINGS(333333, 666666, 1000000));
    CHECK(FALLBACK(125000, 250000, 625000));
}

TEST(fixed_is_weight_of_max_inst_whoever_else_runs_sch3)
{
    entitle(CGPU_POLICY_FIXED);
    CHECK(COMPETES(100, 200, 500));
    CHECK(CEILINGS(50000, 100000, 250000));
    CHECK(FALLBACK(50000, 100000, 250000));
}

TEST(soft_shares_as_preemptive_sch4)
{
    entitle(CGPU_POLICY_SOFT);
    CHECK(COMPETES(100, 100, 100));
    CHECK(CEILINGS(1000000, 1000000, 1000000));
}

TEST(native_limits_nobody_sch5)
{
    entitle(CGPU_POLICY_NATIVE);
    CHECK(CEILINGS(1000000, 1000000, 1000000));
    CHECK(FALLBACK(1000000, 1000000, 1000000));
}

TEST(weighted_fair_shares_by_weight_without_ceilings_sch6)
{
    entitle(CGPU_POLICY_WEIGHTED_FAIR);
    CHECK(COMPETES(100, 200, 500));
    CHECK(CEILINGS(1000000, 1000000, 1000000));
    CHECK(FALLBACK(125000, 250000, 625000));
}

/* Containers of the weights W and the caps M under POLICY, in entries of `claims`. */
static void
entitle_by(uint32_t policy, const uint32_t *w, const uint32_t *m, size_t count)
{
    memset(claims, 0, sizeof claims);
    for (size_t i = 0; i < count; i++) {
        claims[i] = (struct cgpu_claim){.weight = w[i], .memory_mib = m[i]};
    }
    CHECK(cgpu_policy_entitle(policy, claims, count, MAX_INST) == CGPU_OK);
}

TEST(those_that_were_promised_no_time_share_by_memory_what_is_left_dra_2)
{
    static const uint32_t weights[RUNNING] = {6, 0, 0}, sizes[RUNNING] = {40000, 4096, 8192};

    entitle_by(CGPU_POLICY_WEIGHTED_FAIR, weights, sizes, 2);
    CHECK(claims[0].competes == 600 && claims[1].competes == 1400);
    CHECK(claims[0].fallback_ppm == 300000 && claims[1].fallback_ppm == 700000);
    entitle_by(CGPU_POLICY_WEIGHTED_FAIR, weights, sizes, RUNNING);
    CHECK(COMPETES(600, 467, 933));
    entitle_by(CGPU_POLICY_WEIGHTED_FAIR, weights + 1, sizes + 1, 2);
    CHECK(claims[0].competes == 667 && claims[1].competes == 1333);
    entitle_by(CGPU_POLICY_WEIGHTED_PREEMPTIVE, weights, sizes, RUNNING);
    CHECK(CEILINGS(300000, 233500, 466500));
    entitle_by(CGPU_POLICY_FIXED, weights, sizes, RUNNING);
    CHECK(CEILINGS(300000, 233500, 466500));
}

TEST(they_have_half_a_hundredth_together_where_nothing_is_left_dra_2)
{
    enum { ALL = 20 };
    static const uint32_t weights[RUNNING] = {20, 0, 0}, sizes[RUNNING] = {8192, 1, 70000};
    struct cgpu_claim crowd[ALL] = {{.weight = 20, .memory_mib = 1}};
    uint64_t others = 0;

    entitle_by(CGPU_POLICY_WEIGHTED_FAIR, weights, sizes, RUNNING);
    CHECK(COMPETES(2000, 1, 8));
    CHECK(FALLBACK(995520, 497, 3982));
    for (uint32_t i = 1; i < ALL; i++) {
        crowd[i].memory_mib = i;
    }
    CHECK(cgpu_policy_entitle(CGPU_POLICY_WEIGHTED_FAIR, crowd, ALL, MAX_INST) == CGPU_OK);
    for (uint32_t i = 1; i < ALL; i++) {
        CHECK(crowd[i].competes > 0);
        others += crowd[i].competes;
    }
    CHECK(crowd[0].competes == 2000 && others <= MAX_INST);
}

/* max_inst may be lowered while more run than it allows. */
TEST(fallback_parts_fit_even_where_weights_do_not_sch9)
{
    for (uint32_t policy = 0; policy < CGPU_POLICIES; policy++) {
        uint64_t sum = 0;

        entitle(policy);
        CHECK(cgpu_policy_entitle(policy, claims, RUNNING, 2) == CGPU_OK);
        for (int i = 0; i < RUNNING; i++) {
            sum += claims[i].fallback_ppm;
            CHECK(claims[i].competes > 0 && claims[i].ceiling_ppm <= CGPU_WHOLE_PPM);
        }
        CHECK(policy == CGPU_POLICY_NATIVE || sum <= CGPU_WHOLE_PPM);
    }
}

TEST(what_is_out_of_range_is_refused)
{
    struct cgpu_claim one = {.weight = 1};

    CHECK(cgpu_policy_entitle(CGPU_POLICIES, claims, 0, 20) == CGPU_EINVAL);
    CHECK(cgpu_policy_entitle(0, &one, 1, 0) == CGPU_EINVAL);
    CHECK(cgpu_policy_entitle(0, claims, 0, 0) == CGPU_EINVAL);
    CHECK(cgpu_policy_name(CGPU_POLICIES) == NULL);
    CHECK(strcmp(cgpu_policy_name(CGPU_POLICY_SOFT), "soft") == 0);
}
