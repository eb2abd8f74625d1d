/*
 * A process's side of arbitration: its work on one GPU, published in the ledger.
 *
 * The process stores each field of struct cgpu_ledger_work when it changes, with one aligned store;
 * the arbiter reads copies. The following order makes sure that no work is missed:
 *
 *   process   active = gate word; full fence; is the gate word still the same? launch.
 *   arbiter   gate word = closed; full fence; is any active != 0? then work may be in flight.
 *   process   gate word changed, all that was launched has ended: active = 0; ring.
 *
 * A process that dies needs no help: its slot's lock shows it to the arbiter, and the next process
 * that claims a work reuses the dead one's.
 */
#ifndef CGPU_WORK_H
#define CGPU_WORK_H

#include <stdint.h>
#include <string.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

/* Owner and GPU of a work. They are read and written in one step. */
struct cgpu_work_key {
    uint32_t owner, gpu;
};

typedef uint64_t __attribute__((may_alias)) cgpu_work_word;

static inline cgpu_work_word
cgpu_work_word_of(struct cgpu_work_key key)
{
    cgpu_work_word word;

    memcpy(&word, &key, sizeof word);
    return word;
}

/* The key of WORK: an entry of the table of works, which is a work or a sharing. */
static inline struct cgpu_work_key
cgpu_work_key_of(const void *work)
{
    cgpu_work_word word = __atomic_load_n((const cgpu_work_word *)work, __ATOMIC_RELAXED);
    struct cgpu_work_key key;

    memcpy(&key, &word, sizeof key);
    return key;
}

/* Free WORK: a work or a sharing whose process is dead or no longer uses it. */
void cgpu_work_clear(void *work);

/*
 * The work of the calling process on GPU (its number in the limits). It is claimed on first use and
 * given back with the ledger's slot. CGPU_EFULL: living processes have all of them.
 */
int cgpu_work_claim(struct cgpu_ledger *ledger, uint32_t gpu, struct cgpu_ledger_work **out);

/* The work that this process has claimed on GPU; NULL: none. */
struct cgpu_ledger_work *cgpu_work_find(const struct cgpu_ledger *ledger, uint32_t gpu);

/* The counters of GPU that all processes add to and the arbiter reads. */
struct cgpu_ledger_gpu *cgpu_work_sums(struct cgpu_ledger *ledger, uint32_t gpu);

/*
 * Mark WORK as in flight under the gate WORD from NOW on. Afterwards the caller reads the gate
 * again (see above).
 */
static inline void
cgpu_work_begin(struct cgpu_ledger_work *work, uint32_t word, uint64_t now)
{
    if (__atomic_load_n(&work->active, __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&work->begun_ns, now, __ATOMIC_RELAXED);
    }
    /* seq_cst: a reader that sees `active` also sees begun_ns */
    __atomic_store_n(&work->active, word, __ATOMIC_SEQ_CST);
}

/* Make the arbiter check GPU soon: one futex system call. */
void cgpu_work_ring(struct cgpu_ledger *ledger, uint32_t gpu);

/*
 * cgpu_work_add_stall: count that work of this process on GPU begins to stall.
 * cgpu_work_add_stalled_ns: add NS for which such work was stalled and which were not reported yet.
 * Both are relaxed: these are sums over all processes, and nothing else depends on them.
 */
static inline void
cgpu_work_add_stall(struct cgpu_ledger_gpu *gpu)
{
    __atomic_add_fetch(&gpu->stalls, 1, __ATOMIC_RELAXED);
}

static inline void
cgpu_work_add_stalled_ns(struct cgpu_ledger_gpu *gpu, uint64_t ns)
{
    __atomic_add_fetch(&gpu->stalled_ns, ns, __ATOMIC_RELAXED);
}

/*
 * An upper bound of the works that were ever claimed; at most their number, whatever the file
 * contains.
 */
uint32_t cgpu_work_bound(const struct cgpu_ledger_file *file);

/* Free all works and sharings of slot INDEX. */
void cgpu_work_free(struct cgpu_ledger_file *file, uint32_t index);

#endif
