/*
 * The names that this library exports, as the loader sees them. A proxy removes those that the
 * driver behind it lacks. So a program that asks for one (dlsym) gets the same answer as without
 * cgpu.
 */
#ifndef CGPU_OWN_NAMES_H
#define CGPU_OWN_NAMES_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

struct cgpu_own_names {
    ElfW(Sym) * symbols;
    size_t count;
    void *pages; /* that the symbols lie in */
    size_t pages_size;
};

/* Make the library's own symbol table writable. False: it is not writable, and OWN is not open. */
bool cgpu_own_names_open(struct cgpu_own_names *own);

/* From now on, look-ups do not find FUNCTION, an export of this library. */
void cgpu_own_names_hide(const struct cgpu_own_names *own, const void *function);

void cgpu_own_names_close(const struct cgpu_own_names *own);

#endif
