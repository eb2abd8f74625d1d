/* The scenarios with bars: shares.c, windows.c, times.c, rules.c, crowd.c, meet.c,
 * idle.c, edges.c, long.c, changes.c, stops.c, bursts.c, kinds.c, processes.c. Each prints a line
 * for every scenario. */
#ifndef CASES_H
#define CASES_H

#include "model.h"

/* One figure of one scenario and what it must not exceed; returns 1 if it does. */
int cases_note(const char *group, const char *name, double value, double bar,
               const struct world *world);
/* The same with a second figure: the GPU's time in use, percent, and the least of it. */
int cases_note_busy(const char *group, const char *name, double value, double bar, double least,
                    const struct world *world);

/* What the first tenant of a scenario is to have. */
struct cases_aim {
    double percent;
    double bar; /* points */
    double least_busy;
    bool of_time; /* else of what was delivered */
    bool above;   /* less is no fault */
};

/* Run S and note how far its first tenant is off AIM; FORMAT and what follows is its name. */
int cases_aim_at(const char *group, const struct scenario *s, const struct cases_aim *aim,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

struct cases_group {
    const char *name;
    int (*run)(const char *group);
};

extern const struct cases_group cases_shares[], cases_windows[], cases_times[], cases_rules[],
    cases_priority[], cases_crowd[], cases_meet[], cases_idle[], cases_edges[], cases_long[],
    cases_changes[], cases_stops[], cases_bursts[], cases_kinds[],
    cases_processes[]; /* end with NULL */

enum { CASES_LENGTHS = 6 };
extern const uint64_t cases_lengths[CASES_LENGTHS];
const char *cases_length_name(uint64_t ns);

#endif
