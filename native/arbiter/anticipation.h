/*
 * A turn that goes on while its holder rests. A container that rests for half a millisecond beside
 * kernels of 20 ms waits for one of them after each rest, unless it is let in beside it
 * (overlap.c). Where that was in vain, its turn lasts through the rest, if the others' work goes on
 * for several times as long as it usually rests. It pays for the rest, and such rests leave the GPU
 * idle for only a small part of the time.
 */
#ifndef CGPU_ANTICIPATION_H
#define CGPU_ANTICIPATION_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_arbiter;
struct cgpu_tenant;

/* Of a container. */
struct cgpu_rest {
    uint64_t since_ns; /* its work in a turn had ended, and it has not waited since; 0: else */
    uint64_t busy_ns;  /* its demand.busy_ns then */
    uint64_t usual_ns; /* how long it usually rests; 0: unknown */
    bool anticipates;  /* it rests, and its turn goes on */
};

/* Whether HOLDER, which has nothing to do, keeps its turn although OTHER (NULL: nobody) waits. */
bool cgpu_anticipate(struct cgpu_arbiter *arbiter, struct cgpu_tenant *holder,
                     const struct cgpu_tenant *other, uint64_t now);
/* When to ask again. */
uint64_t cgpu_anticipation_until(const struct cgpu_tenant *holder);
/* Its turn ends meanwhile, for whatever reason. */
void cgpu_anticipation_end(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t now);
/* A demand of TENANT was adopted: has a rest ended? */
void cgpu_anticipation_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                               uint64_t now);
/* NS have passed: the GPU may be idle for a part of them. */
void cgpu_anticipation_refill(struct cgpu_arbiter *arbiter, uint64_t ns);

#endif
