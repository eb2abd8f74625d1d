/* Kernels of more than a second, each launched when the last has ended. */
#include "cases.h"

struct row {
    uint64_t ns;
    uint32_t weight, other;
    double bar; /* points above its share */
};

static uint32_t
in_ms(uint64_t ns)
{
    return (uint32_t)(ns / MS);
}

static void
launch_one_by_one(struct scenario *s, uint32_t weight, uint64_t ns)
{
    scenario_tenant(s, weight, ns)->load.sync_every = 1;
}

/* While such a kernel shares the GPU it has half, whatever its weight: none falls short by debt. */
static int
shares(const char *group)
{
    static const struct row rows[] = {
        {500 * MS, 1, 1, 0.5}, {900 * MS, 1, 1, 2.5},   {1100 * MS, 1, 1, 2.5},
        {1500 * MS, 1, 1, 1},  {3 * SECOND, 1, 1, 1},   {10 * SECOND, 1, 1, 1},
        {500 * MS, 1, 9, 0.5}, {900 * MS, 1, 9, 1},     {1500 * MS, 1, 9, 1},
        {3 * SECOND, 1, 9, 3}, {10 * SECOND, 1, 9, 18}, {1500 * MS, 9, 1, 0},
        {3 * SECOND, 9, 1, 0},
    };
    int missed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct cases_aim aim = {.percent = 100.0 * row->weight / (row->weight + row->other),
                                .bar = row->bar,
                                .above = true};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 600 * SECOND);
        launch_one_by_one(&s, row->weight, row->ns);
        scenario_tenant(&s, row->other, MS);
        missed +=
            cases_aim_at(group, &s, &aim, "%ums-%u:%u", in_ms(row->ns), row->weight, row->other);
    }
    return missed;
}

/* Alone under a ceiling of 5 %: points above it. Beyond 2 s debt is forgotten. */
static int
ceiling(const char *group)
{
    static const struct row rows[] = {
        {500 * MS, 1, 0, 0.5},   {1500 * MS, 1, 0, 0.5},  {2 * SECOND, 1, 0, 0.5},
        {3 * SECOND, 1, 0, 3.0}, {10 * SECOND, 1, 0, 21},
    };
    int missed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cases_aim aim = {.percent = 5, .bar = rows[i].bar, .of_time = true, .above = true};
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_FIXED, 600 * SECOND);
        s.rules.max_inst = 20;
        launch_one_by_one(&s, rows[i].weight, rows[i].ns);
        missed += cases_aim_at(group, &s, &aim, "%ums", in_ms(rows[i].ns));
    }
    return missed;
}

/* It was alone for half a minute: a container that comes then has its share, neither more. */
static int
newcomer(const char *group)
{
    static const struct cases_aim aim = {.percent = 50, .bar = 1};
    static const uint64_t lengths[] = {20 * MS, 3 * SECOND};
    int missed = 0;

    for (int i = 0; i < 2; i++) {
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 631 * SECOND);
        s.from_ns = 31 * SECOND;
        launch_one_by_one(&s, 1, lengths[i]);
        scenario_tenant(&s, 1, MS)->start_ns = s.from_ns;
        missed += cases_aim_at(group, &s, &aim, "%ums", in_ms(lengths[i]));
    }
    return missed;
}

const struct cases_group cases_long[] = {
    {"long-shares", shares},
    {"long-ceiling", ceiling},
    {"long-newcomer", newcomer},
    {NULL, NULL},
};
