/* Time in which all gates are open together, although the policy takes turns. */
#ifndef CGPU_CORUN_H
#define CGPU_CORUN_H

#include "arbiter/arbiter.h"

struct cgpu_corun {
    bool on;
    bool proven;       /* it was compared with turns and was worth it */
    uint64_t since_ns; /* since when their work is measured */
    uint64_t until_ns; /* when turns return */
    uint64_t again_ns; /* no attempt before then */
    uint32_t failures; /* attempts in a row that were not worth it */
};

/* What one container has done. */
struct cgpu_corunner {
    uint64_t before_ns; /* what it had done at since_ns */
    uint64_t paid_ns;   /* what it had been charged then */
    uint64_t turns_ns;  /* what it does in MEASURE_NS of turns; 0: too little to compare */
    uint64_t first_ns;  /* the same when gates were first open together; 0: unknown */
    bool met;           /* its gate closed together with others', and its work goes on */
};

/* Whether all gates are open together for now. */
bool cgpu_corun_step(struct cgpu_arbiter *arbiter, uint64_t now);
/* Close the gates if they are open together, and measure turns anew. */
void cgpu_corun_end(struct cgpu_arbiter *arbiter, uint64_t now);
/* Containers, weights or rules change: do the same, and try again only after some turns. */
void cgpu_corun_change(struct cgpu_arbiter *arbiter, uint64_t now);

#endif
