/*
 * The edges of turns: GPUs that begin late what is launched and tell late what has ended, and those
 * who lie about it.
 */
#include "cases.h"

#define BUSY 98.0

static const uint64_t latencies[] = {0, 20 * US, 100 * US, 300 * US};
static const uint64_t lengths[] = {5 * US, 100 * US, 500 * US, 1 * MS, 5 * MS, 20 * MS};

enum { LATENCIES = 4, LENGTHS = 6 };

static int
in_us(uint64_t ns)
{
    return (int)(ns / US);
}

static void
set_latency(struct scenario *s, uint64_t ns)
{
    s->dispatch_ns = ns;
    s->completion_ns = ns;
}

static int
pairs(const char *group)
{
    static const uint32_t weights[][2] = {{1, 9}, {1, 3}, {1, 1}};
    int missed = 0;

    for (int i = 0; i < 3 * LATENCIES * LENGTHS * LENGTHS; i++) {
        const uint32_t *w = weights[i / LENGTHS / LENGTHS / LATENCIES];
        uint64_t one = lengths[i / LENGTHS % LENGTHS], other = lengths[i % LENGTHS];
        struct cases_aim aim = {
            .percent = 100.0 * w[0] / (w[0] + w[1]), .bar = 1, .least_busy = BUSY};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
        set_latency(&s, latencies[i / LENGTHS / LENGTHS % LATENCIES]);
        scenario_tenant(&s, w[0], one);
        scenario_tenant(&s, w[1], other);
        missed += cases_aim_at(group, &s, &aim, "%u:%u-%dus-%dus-%dus", w[0], w[1], in_us(one),
                               in_us(other), in_us(s.dispatch_ns));
    }
    return missed;
}

/*
 * Threads that wake up late, as on a machine with few processors: 100 us beside 20 ms, which are
 * mostly alone in their turns.
 */
static int
slow(const char *group)
{
    static const struct cases_aim aim = {.percent = 10, .bar = 0.3, .least_busy = 98.8};
    int missed = 0;

    for (int i = 0; i < LATENCIES; i++) {
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 20 * SECOND);
        s.timer_most = 100 * US;
        s.wake_most = 150 * US;
        set_latency(&s, latencies[i]);
        scenario_tenant(&s, 1, 100 * US);
        scenario_tenant(&s, 9, 20 * MS);
        missed += cases_aim_at(group, &s, &aim, "%dus", in_us(s.dispatch_ns));
    }
    return missed;
}

/* 5 percent of the time for one that is alone. */
static int
ceiling(const char *group)
{
    static const struct cases_aim aim = {.percent = 5, .bar = 0.3, .of_time = true};
    int missed = 0;

    for (int i = 0; i < LATENCIES * LENGTHS; i++) {
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_FIXED, 10 * SECOND);
        s.rules.max_inst = 20;
        set_latency(&s, latencies[i / LENGTHS]);
        scenario_tenant(&s, 1, lengths[i % LENGTHS]);
        missed += cases_aim_at(group, &s, &aim, "%dus-%dus", in_us(lengths[i % LENGTHS]),
                               in_us(s.dispatch_ns));
    }
    return missed;
}

/*
 * The same where threads wake up late, with kernels of 500 us: what nobody used is not charged. On
 * a loaded machine more of it is charged than not, for only so much is believed.
 */
static int
slow_ceiling(const char *group)
{
    static const struct {
        uint64_t wake, timer;
        double bar;
    } late[] = {{200 * US, 100 * US, 0.12}, {1 * MS, 300 * US, 0.3}};
    int missed = 0;

    for (int i = 0; i < 2 * LATENCIES; i++) {
        struct cases_aim aim = {.percent = 5, .bar = late[i / LATENCIES].bar, .of_time = true};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_FIXED, 20 * SECOND);
        s.rules.max_inst = 20;
        s.wake_most = late[i / LATENCIES].wake;
        s.timer_most = late[i / LATENCIES].timer;
        set_latency(&s, latencies[i % LATENCIES]);
        scenario_tenant(&s, 1, 500 * US);
        missed +=
            cases_aim_at(group, &s, &aim, "%dus-%dus", in_us(s.wake_most), in_us(s.dispatch_ns));
    }
    return missed;
}

/* What one with a ceiling gains that says it has not used anything. */
static int
liar_ceiling(const char *group)
{
    static const uint32_t weights[] = {1, 2, 6, 10, 18};
    int missed = 0;

    for (int i = 0; i < 5 * LATENCIES * LENGTHS; i++) {
        uint32_t percent = 5 * weights[i / LENGTHS / LATENCIES];
        struct cases_aim aim = {.percent = percent, .bar = 1, .of_time = true, .above = true};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_FIXED, 10 * SECOND);
        s.rules.max_inst = 20;
        set_latency(&s, latencies[i / LENGTHS % LATENCIES]);
        scenario_tenant(&s, percent / 5, lengths[i % LENGTHS])->late = 1;
        missed += cases_aim_at(group, &s, &aim, "%u-%dus-%dus", percent,
                               in_us(lengths[i % LENGTHS]), in_us(s.dispatch_ns));
    }
    return missed;
}

/* What one gains that says its work begins at once, or late. */
static int
liar(const char *group)
{
    static const uint32_t weights[] = {1, 9};
    int missed = 0;

    for (int i = 0; i < 2 * 2 * LATENCIES * LENGTHS; i++) {
        uint32_t weight = weights[i / LENGTHS / LATENCIES % 2];
        uint64_t reported = i / LENGTHS / LATENCIES / 2 == 0 ? 1 : SECOND;
        struct cases_aim aim = {.percent = 10 * weight, .bar = 1, .above = true};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
        set_latency(&s, latencies[i / LENGTHS % LATENCIES]);
        scenario_tenant(&s, weight, lengths[i % LENGTHS])->lag_ns = reported;
        scenario_tenant(&s, 10 - weight, 100 * US);
        missed += cases_aim_at(group, &s, &aim, "%u-%s-%dus-%dus", weight,
                               reported == 1 ? "none" : "much", in_us(lengths[i % LENGTHS]),
                               in_us(s.dispatch_ns));
    }
    return missed;
}

const struct cases_group cases_edges[] = {
    {"edge-pairs", pairs},
    {"edge-slow", slow},
    {"edge-ceiling", ceiling},
    {"edge-liar", liar},
    {"slow-ceiling", slow_ceiling},
    {"liar-ceiling", liar_ceiling},
    {NULL, NULL},
};
