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
    bool doubtful; /* since then it had work that stalled, or of unknown length */
};

/* Count NS that are charged to TENANT. */
void cgpu_used_charge(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant, uint64_t ns);
/* Note that a container had the GPU for NS, and is charged nothing for that. */
void cgpu_used_skip(struct cgpu_arbiter *arbiter, uint64_t ns);
/* Whether the shown time of TENANT is corrected by what it reports. */
bool cgpu_used_is_corrected(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);
/* Before SAYS is adopted: correct what is shown, if all work of TENANT has ended. */
void cgpu_used_observe(struct cgpu_arbiter *arbiter, struct cgpu_tenant *tenant,
                       const struct cgpu_demand *says);
/* Clear the figures of parts of a second that begin anew by NOW. */
void cgpu_used_turn_parts(struct cgpu_arbiter *arbiter, uint64_t now);
/* TENANT's part of the last second, or of what one step charged if that is longer. */
uint32_t cgpu_used_ppm(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant);

#endif
