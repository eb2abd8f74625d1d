/* Time in which all gates are open together, although the policy takes turns. */
#ifndef CGPU_COMPANY_H
#define CGPU_COMPANY_H

#include "arbiter/arbiter.h"

struct cgpu_company {
    bool on;
    bool proven;       /* it was compared with turns */
    uint64_t rivals;   /* who takes part: a bit for each */
    uint64_t since_ns; /* what they do is measured since then */
    uint64_t until_ns; /* then turns return */
    uint64_t again_ns; /* no attempt before */
    uint32_t failures; /* attempts in a row that were not worth it */
};

/* What one container has done. */
struct cgpu_companion {
    uint64_t at_ns;     /* when it was last seen to have done more */
    uint64_t before_ns; /* what it had done at since_ns */
    uint64_t turns_ns;  /* what it does in a tenth of a second of turns; 0: not known */
};

/* Whether all gates are open together for now. */
bool cgpu_company(struct cgpu_arbiter *arbiter, uint64_t now);
void cgpu_company_end(struct cgpu_arbiter *arbiter, uint64_t now);

#endif
