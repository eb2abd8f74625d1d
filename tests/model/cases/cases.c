/* Scenarios with bars: which there are, and how their figures are printed. */
#include "cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A second, by the arbiter's budget and what it may do at once. */
#define MOST_STEPS 8400

const uint64_t cases_lengths[CASES_LENGTHS] = {5 * US, 50 * US, 500 * US,
                                               5 * MS, 50 * MS, 200 * MS};

const char *
cases_length_name(uint64_t ns)
{
    static const char *const names[CASES_LENGTHS] = {"5us", "50us", "500us",
                                                     "5ms", "50ms", "200ms"};

    for (int i = 0; i < CASES_LENGTHS; i++) {
        if (cases_lengths[i] == ns) {
            return names[i];
        }
    }
    return "?";
}

int
cases_note_busy(const char *group, const char *name, double value, double bar, double least,
                const struct world *world)
{
    double busy = print_busy(world);
    double steps = (double)world->steps * 1e9 / (double)world->scenario->length_ns;
    bool met = value <= bar && busy >= least && steps <= MOST_STEPS;

    if (world->skipped) {
        return 0;
    }
    printf("{\"group\": \"%s\", \"name\": \"%s\", \"value\": %.4f, \"bar\": %.4f, \"busy\": %.3f, "
           "\"least_busy\": %.3f, \"steps_per_s\": %.0f, \"met\": %s}\n",
           group, name, value, bar, busy, least, steps, met ? "true" : "false");
    return met ? 0 : 1;
}

int
cases_note(const char *group, const char *name, double value, double bar, const struct world *world)
{
    return cases_note_busy(group, name, value, bar, 0, world);
}

int
cases_aim_at(const char *group, const struct scenario *s, const struct cases_aim *aim,
             const char *format, ...)
{
    struct world *world = world_run(s);
    double off = (aim->of_time ? print_part(world, 0) : print_share(world, 0)) - aim->percent;
    char name[64];
    va_list words;
    int missed;

    va_start(words, format);
    vsnprintf(name, sizeof name, format, words);
    va_end(words);
    missed = cases_note_busy(group, name, aim->above ? off : fabs(off), aim->bar, aim->least_busy,
                             world);
    world_free(world);
    return missed;
}

static int
run_table(const struct cases_group *groups, const char *name)
{
    int missed = 0;

    for (; groups->name != NULL; groups++) {
        if (strncmp(groups->name, name, strlen(name)) == 0) {
            missed += groups->run(groups->name);
        }
    }
    return missed;
}

int
cases_run(const char *name)
{
    return run_table(cases_shares, name) + run_table(cases_windows, name) +
           run_table(cases_times, name) + run_table(cases_rules, name) +
           run_table(cases_priority, name) + run_table(cases_crowd, name) +
           run_table(cases_meet, name) + run_table(cases_idle, name) +
           run_table(cases_edges, name) + run_table(cases_long, name) +
           run_table(cases_changes, name) + run_table(cases_stops, name) +
           run_table(cases_bursts, name) + run_table(cases_kinds, name) +
           run_table(cases_processes, name);
}
