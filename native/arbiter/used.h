/* The GPU time that is shown for a container: see used.c. */
#ifndef CGPU_USED_H
#define CGPU_USED_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_arbiter;
struct cgpu_demand;
struct cgpu_tenant;

enum { CGPU_RECENT_PARTS = 20 };

struct cgpu_used {
    uint64_t total_ns;
    uint64_t recent_ns[CGPU_RECENT_PARTS]; /* of the last second */
    uint64_t over_ns;                      /* this much of what is charged next is not shown */
    uint64_t charged_ns;                   /* as it was when the container last had no work left */
    uint64_t busy_ns;                      /* as it was reported then */
    bool doubtful; /* since then it had work of unknown length, or that stalled */
};

/* Count NS that are charged to TENANT. */
void cgpu_used_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns);
/* Note NS in which a container had the GPU and is charged nothing. */
void cgpu_used_skip(struct cgpu_arbiter *arbiter, uint64_t ns);
/* Whether what TENANT reports as used corrects what is shown. */
bool cgpu_used_is_corrected(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);
/* Before SAYS is adopted: correct what is shown if all work of TENANT has ended. */
void cgpu_used_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       const struct cgpu_demand *says);
/* Begin anew the parts of the last second that have passed. */
void cgpu_used_turn_parts(struct cgpu_arbiter *arbiter, uint64_t now);
/* The part of TENANT in the last second, or in what one step charged if that is longer. */
uint32_t cgpu_used_ppm(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);

#endif
