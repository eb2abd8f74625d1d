/*
 * Every exported symbol.
 *
 * What no other file defines is a weak stub here that says "not supported": the strong definition
 * of an implemented entry point replaces it at link time, so no list says which are
 * implemented. sim.h is not included: the declarations made here deliberately know nothing of the
 * parameters.
 */
#include "entries.h"

int sim_unsupported(const char *name);

#define EXPORT(symbol)                                                                             \
    __attribute__((weak, visibility("default"))) int symbol(void);                                 \
    int symbol(void)                                                                               \
    {                                                                                              \
        return sim_unsupported(#symbol);                                                           \
    }
#define ENTRY(base, since, symbol)                    EXPORT(symbol)
#define ENTRY_PER_THREAD(base, since, symbol, suffix) EXPORT(symbol) EXPORT(symbol##suffix)
#include "entry_points.def"
#undef EXPORT
#undef ENTRY
#undef ENTRY_PER_THREAD

const struct sim_entry sim_entries[] = {
#define EXPORT(symbol)
#define ENTRY(base, since, symbol)                    {#base, since, symbol, NULL},
#define ENTRY_PER_THREAD(base, since, symbol, suffix) {#base, since, symbol, symbol##suffix},
#include "entry_points.def"
};

const size_t sim_entry_count = sizeof sim_entries / sizeof *sim_entries;
