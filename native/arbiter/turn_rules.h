/* Whose turn is next, and how long turns last: see turn_rules.c. */
#ifndef CGPU_TURN_RULES_H
#define CGPU_TURN_RULES_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_arbiter;
struct cgpu_tenant;

/* The index of the container whose turn is next, of those that wait, except EXCEPT; -1: nobody. */
int cgpu_turn_next(const struct cgpu_arbiter *arbiter, uint64_t now, int except);
/* Whether INDEX would be next if it waited. */
bool cgpu_turn_is_due(const struct cgpu_arbiter *arbiter, int index, uint64_t now);
/* Whether TENANT may hold the GPU, if it wants to. */
bool cgpu_turn_allowed(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant,
                       uint64_t now);
/* The only container on the GPU, if it has no ceiling: it gets the GPU without turns. -1: none. */
int cgpu_turn_only_one(const struct cgpu_arbiter *arbiter);
/* Whether the others have been without work for NS. */
bool cgpu_turn_alone(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant,
                     uint64_t ns, uint64_t now);
/*
 * The virtual time at which the round ends. If all those that wait have had their turns, that is
 * the end of the next round. LEAST is the least charge of those that wait. The end is at most two
 * turns above it, because containers come and weights change.
 */
uint64_t cgpu_turn_round_end(const struct cgpu_arbiter *arbiter, bool high, uint64_t least);
/* How much longer HOLDER may go on before it gives way to OTHER. */
uint64_t cgpu_turn_left(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *holder,
                        const struct cgpu_tenant *other);
/*
 * Whether the end of TENANT's work is certain, and at most EARLY away. EARLY: cgpu_turn_early of
 * the next container.
 */
bool cgpu_turn_ends_soon(const struct cgpu_tenant *tenant, uint64_t early, uint64_t now);
/* Until when others wait for the end of TENANT's work. */
uint64_t cgpu_turn_patience(const struct cgpu_tenant *tenant);
/* The lag of the GPU: see cgpu_demand. */
uint64_t cgpu_lag_least(const struct cgpu_arbiter *arbiter);
/*
 * How long before the others' work ends the gate of INDEX (-1: any) may open; 0: only at the end.
 */
uint64_t cgpu_turn_early(const struct cgpu_arbiter *arbiter, int index);

#endif
