/*
 * A turn that lasts through its holder's rests.
 *
 * A container that rests for 0.5 ms, while another runs kernels of 20 ms, waits for such a kernel
 * after each rest, unless its gate is opened while the kernel runs (overlap.c). If that was not
 * worth it twice in a row, and the other's work takes more than four times the usual rest, the turn
 * goes on through the rest. The container pays for the rest. The GPU is left idle for at most 1/25
 * of the time.
 */
#ifndef CGPU_ANTICIPATION_H
#define CGPU_ANTICIPATION_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_arbiter;
struct cgpu_tenant;

/* The rests of one container. */
struct cgpu_rest {
    uint64_t since_ns; /* its work in a turn had ended, and it has not waited since; 0: else */
    uint64_t busy_ns;  /* its demand.busy_ns then */
    uint64_t usual_ns; /* how long it usually rests; 0: unknown */
    bool anticipates;  /* it rests, and its turn goes on */
};

/* Whether HOLDER, which has nothing to do, keeps its turn although OTHER (NULL: nobody) waits. */
bool cgpu_anticipate(struct cgpu_arbiter *arbiter, struct cgpu_tenant *holder,
                     const struct cgpu_tenant *other, uint64_t now);
/* When to call cgpu_anticipate again. */
uint64_t cgpu_anticipation_until(const struct cgpu_tenant *holder);
/* Note that TENANT's turn ends, for whatever reason, perhaps while it rests. */
void cgpu_anticipation_end(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now);
/* Check whether a rest has ended, after a demand of TENANT was adopted. */
void cgpu_anticipation_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                               uint64_t now);
/* Allow the GPU to be idle for a part of the NS that have passed. */
void cgpu_anticipation_refill(struct cgpu_arbiter *arbiter, uint64_t ns);

#endif
