/*
 * A turn that lasts through its holder's rests.
 *
 * Suppose that a container rests for 0.5 ms after each burst, while another one runs kernels of 20
 * ms. After each rest it waits for such a kernel, unless its gate opens beside the kernel
 * (overlap.c). If that failed twice in a row, and the other's work takes more than four times the
 * usual rest, the container's turn continues through its rests, and it pays for them. They leave
 * the GPU idle for at most 1/25 of the time.
 */
#ifndef CGPU_ANTICIPATION_H
#define CGPU_ANTICIPATION_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_arbiter;
struct cgpu_tenant;

/* The rests of one container. */
struct cgpu_rest {
    uint64_t since_ns; /* when its rest began: no work, and no thread waits; 0: no rest */
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
/* After a demand of TENANT was adopted: note whether its rest has ended. */
void cgpu_anticipation_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                               uint64_t now);
/* NS have passed: add the part of them for which rests may leave the GPU idle. */
void cgpu_anticipation_refill(struct cgpu_arbiter *arbiter, uint64_t ns);

#endif
