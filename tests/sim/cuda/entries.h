/* The table of entry points, as cuGetProcAddress needs it. */
#ifndef CGPU_SIM_ENTRIES_H
#define CGPU_SIM_ENTRIES_H

#include <stddef.h>

struct sim_entry {
    const char *base;
    int since;               /* CUDA version */
    int (*symbol)(void);     /* type only stands for "a function" */
    int (*per_thread)(void); /* NULL: has no variant */
};

extern const struct sim_entry sim_entries[];
extern const size_t sim_entry_count;

#endif
