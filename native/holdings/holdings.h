/*
 * Holdings: what this process has charged, by the handle with which it will be released. Design:
 * docs/design/memory.md.
 *
 * The hash table has memory of its own (mmap, never the host program's allocator). It is divided
 * into shards so that threads seldom wait for each other. Look-up, insertion and removal cost the
 * same with 10 and with 10,000 entries.
 */
#ifndef CGPU_HOLDINGS_H
#define CGPU_HOLDINGS_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* cffi: begin */
struct cgpu_holdings; /* opaque; one per process */

struct cgpu_holding {
    uint64_t handle; /* device pointer, array, pool, ... as an integer; the key, with kind */
    uint64_t owner;  /* context whose end releases the entry; 0: none */
    uint64_t bytes;  /* what was charged */
    uint64_t extra;  /* whatever the kind needs */
    uint32_t kind;   /* the caller's enumeration; part of the key */
    uint32_t gpu;    /* number in the limits */
};

int cgpu_holdings_create(struct cgpu_holdings **out);

/*
 * Free the table without taking a lock: a forked child destroys its copy and creates a new table.
 */
void cgpu_holdings_destroy(struct cgpu_holdings *holdings);

/* CGPU_EINVAL: the key is there already. CGPU_EIO: there is no memory for the table. */
int cgpu_holdings_insert(struct cgpu_holdings *holdings, const struct cgpu_holding *holding);

/* Copy the entry to OUT. CGPU_ENOTFOUND: there is none. */
int cgpu_holdings_find(struct cgpu_holdings *holdings, uint32_t kind, uint64_t handle,
                       struct cgpu_holding *out);

/* Replace bytes and extra of an entry. CGPU_ENOTFOUND: there is none. */
int cgpu_holdings_update(struct cgpu_holdings *holdings, const struct cgpu_holding *holding);

/*
 * Remove the entry and copy it to OUT. CGPU_ENOTFOUND: there is none. Of two callers that race for
 * an entry, exactly one gets it.
 */
int cgpu_holdings_take(struct cgpu_holdings *holdings, uint32_t kind, uint64_t handle,
                       struct cgpu_holding *out);

/*
 * Remove one of OWNER's entries and copy it to OUT. CGPU_ENOTFOUND: none is left. Scans the table.
 */
int cgpu_holdings_take_owned(struct cgpu_holdings *holdings, uint64_t owner,
                             struct cgpu_holding *out);

/* Copy up to ROOM entries of KIND to OUT. Returns how many there are. Scans the whole table. */
size_t cgpu_holdings_list(struct cgpu_holdings *holdings, uint32_t kind, struct cgpu_holding *out,
                          size_t room);

size_t cgpu_holdings_count(struct cgpu_holdings *holdings);
/* cffi: end */

/*
 * Remove all of OWNER's entries in one pass, and pass each to VISIT, which must not use this table.
 */
void cgpu_holdings_drop_owned(struct cgpu_holdings *holdings, uint64_t owner,
                              void (*visit)(const struct cgpu_holding *, void *), void *argument);

#endif
