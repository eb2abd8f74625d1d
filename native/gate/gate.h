/*
 * The gate word: may the processes of a container launch on a GPU now?
 *
 * It is a futex word per container and GPU in the limits, which processes can read but not write.
 * The low bits are enum cgpu_gate. The rest is a turn number that grows at each change. So a thread
 * that remembers the word under which it was let in detects any change with one comparison.
 */
#ifndef CGPU_GATE_H
#define CGPU_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */
enum cgpu_gate {
    CGPU_GATE_CLOSED = 0,  /* wait */
    CGPU_GATE_OPEN = 1,    /* launch, with a bounded amount of work in flight; nobody else waits */
    CGPU_GATE_PRESSED = 2, /* the same with less; report soon if idle */
    CGPU_GATE_FREE = 3     /* launch, nothing is counted */
};

enum {
    CGPU_GATE_STATE = 3,    /* mask */
    CGPU_GATE_FALLBACK = 4, /* flag: a word of the process itself, while nobody arbitrates */
    CGPU_GATE_TURN = 8      /* the turn number's unit */
};
/* cffi: end */

static inline enum cgpu_gate
cgpu_gate_state(uint32_t word)
{
    return (enum cgpu_gate)(word & CGPU_GATE_STATE);
}

static inline bool
cgpu_gate_is_open(uint32_t word)
{
    return cgpu_gate_state(word) != CGPU_GATE_CLOSED;
}

static inline bool
cgpu_gate_is_metered(uint32_t word)
{
    return cgpu_gate_state(word) != CGPU_GATE_FREE;
}

/*
 * Whether work may be launched far ahead. It may not if the gate closes by the clock, without an
 * arbiter.
 */
static inline bool
cgpu_gate_is_unhurried(uint32_t word)
{
    return (word & CGPU_GATE_FALLBACK) == 0 && cgpu_gate_state(word) == CGPU_GATE_OPEN;
}

/* The word after WORD, in STATE. It is never 0, which means "no turn" elsewhere. */
static inline uint32_t
cgpu_gate_next(uint32_t word, enum cgpu_gate state)
{
    uint32_t turn = (word & ~(uint32_t)(CGPU_GATE_TURN - 1)) + CGPU_GATE_TURN;

    return (turn == 0 ? CGPU_GATE_TURN : turn) | (uint32_t)state;
}

#endif
