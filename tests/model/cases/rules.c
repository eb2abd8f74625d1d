/* What each policy gives to whom, what is left unused, and how often the arbiter looks. */
#include <math.h>
#include <stdlib.h>

#include "cases.h"

enum { MOST_WORDS = 8, MOST_TENANTS = 4 };

#define IDLE ",burst:1us,pause:1000s" /* runs, and has nothing to do */
#define SYNC "tenant=kernel:50us,sync:1,think:"

struct row {
    const char *name;
    const char *words[MOST_WORDS]; /* as on the command line */
    double percent[MOST_TENANTS];  /* of what was delivered, or of time; 0: whatever it is */
    bool of_time;
    double bar;
    double least_busy;
};

static const struct row rows[] = {
    {"1-weights-ignored",
     {"policy=1", "tenant=weight:5", "tenant=kernel:5ms"},
     {50, 50},
     0,
     0.5,
     98.5},
    {"2-all-run", {"policy=2", "tenant=weight:3", "tenant=kernel:5ms"}, {75, 25}, 0, 0.5, 98},
    {"2-one-idle",
     {"policy=2", "tenant=weight:2", "tenant=kernel:5ms", "tenant=weight:1" IDLE},
     {50, 25},
     true,
     0.5,
     0},
    {"4-processes", {"policy=4", "tenant=processes:3", "tenant=kernel:5ms"}, {50, 50}, 0, 5, 90},
    {"4-pair", {"policy=4", "tenant=", "tenant=kernel:5ms"}, {50, 50}, 0, 4, 90},
    {"6-one-idle",
     {"policy=6", "tenant=weight:4", "tenant=weight:2,kernel:5ms", "tenant=weight:6" IDLE},
     {66.667, 33.333},
     false,
     0.5,
     98.5},
    {"6-two-high",
     {"tenant=high:1,weight:3", "tenant=high:1,kernel:5ms", "tenant=kernel:500us"},
     {60, 20, 20},
     false,
     1,
     98.5},
    /* a program that synchronises pays for its pauses up to 200 us, and they are nobody's */
    {"1-sync",
     {"policy=1", "tenant=kernel:500us", "tenant=kernel:5us,sync:1,think:100us"},
     {0},
     0,
     0,
     51},
    {"6-sync",
     {"policy=6", "tenant=kernel:500us", "tenant=kernel:5us,sync:1,think:100us"},
     {0},
     0,
     0,
     51},
    {"6-sync-20", {"policy=6", "tenant=kernel:500us", "tenant=sync:20,think:100us"}, {0}, 0, 0, 93},
    {"6-pauses", {"policy=6", "tenant=kernel:500us", SYNC "300us"}, {0}, 0, 0, 94},
    {"6-pauses-5ms", {"policy=6", "tenant=kernel:5ms", SYNC "1ms"}, {0}, 0, 0, 96.5},
    {"6-two-pause", {"policy=6", SYNC "300us", SYNC "300us"}, {50, 50}, 0, 2, 8},
    {"6-four-pause",
     {"policy=6", SYNC "1ms", SYNC "1ms", SYNC "1ms", SYNC "1ms"},
     {25, 25, 25, 25},
     0,
     2,
     4},
};

static int
rules(const char *group)
{
    int missed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct scenario s;
        struct world *world;
        double worst = 0;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 11 * SECOND);
        s.from_ns = SECOND;
        for (int w = 0; w < MOST_WORDS && row->words[w] != NULL; w++) {
            if (!scenario_parse(&s, row->words[w])) {
                abort();
            }
        }
        world = world_run(&s);
        for (uint32_t t = 0; t < MOST_TENANTS && row->percent[t] > 0; t++) {
            double got = row->of_time ? print_part(world, t) : print_share(world, t);

            worst = fmax(worst, fabs(got - row->percent[t]));
        }
        missed += cases_note_busy(group, row->name, worst, row->bar, row->least_busy, world);
        world_free(world);
    }
    return missed;
}

const struct cases_group cases_rules[] = {{"rules", rules}, {NULL, NULL}};
