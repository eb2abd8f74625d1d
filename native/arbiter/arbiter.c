/* The arbiter: its containers, and the step. See arbiter.h. */
#include "arbiter/arbiter.h"

#include <string.h>

#include "arbiter/arbiter_state.h"
#include "status.h"

size_t
cgpu_arbiter_size(void)
{
    return sizeof(struct cgpu_arbiter);
}

void
cgpu_arbiter_init(struct cgpu_arbiter *arbiter, const struct cgpu_rules *rules, uint64_t now)
{
    memset(arbiter, 0, sizeof *arbiter);
    arbiter->now = now;
    arbiter->holder = -1;
    cgpu_arbiter_set_rules(arbiter, rules);
}

/* Set what the policy gives each container from now on. */
static void
entitle(struct cgpu_arbiter *arbiter)
{
    struct cgpu_claim claims[CGPU_MAX_TENANTS];
    size_t count = 0;

    cgpu_each_tenant(tenant, arbiter) {
        claims[count] = tenant->claim;
        count += 1;
    }
    (void)cgpu_policy_entitle(arbiter->rules.policy, claims, count, arbiter->rules.max_inst);
    count = 0;
    cgpu_each_tenant(tenant, arbiter) {
        tenant->claim = claims[count];
        count += 1;
    }
}

static void
open_all(struct cgpu_arbiter *arbiter, enum cgpu_gate gate, uint64_t now)
{
    arbiter->holder = -1;
    cgpu_each_tenant(tenant, arbiter) {
        cgpu_state_change(arbiter, tenant, CGPU_STATE_RUNNING, now);
        tenant->gate = gate;
    }
}

static void
step_turns(struct cgpu_arbiter *arbiter, uint64_t now)
{
    if (cgpu_corun_step(arbiter, now)) {
        open_all(arbiter, CGPU_GATE_PRESSED, now);
    } else {
        cgpu_turn(arbiter, now);
    }
}

static uint64_t
poll_turns_at(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    return arbiter->corun.on ? cgpu_soft_poll_at(arbiter, now) : cgpu_poll_at(arbiter, now);
}

const struct cgpu_discipline cgpu_turns = {.metered = true,
                                           .charge = cgpu_charge_turns,
                                           .step = step_turns,
                                           .poll_at = poll_turns_at,
                                           .report = cgpu_report_turns};

static void
step_native(struct cgpu_arbiter *arbiter, uint64_t now)
{
    open_all(arbiter, CGPU_GATE_FREE, now);
}

static uint64_t
poll_never(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    (void)arbiter;
    (void)now;
    return UINT64_MAX;
}

static uint32_t
report_nothing(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant)
{
    (void)arbiter;
    (void)tenant;
    return 0;
}

static const struct cgpu_discipline native = {.charge = cgpu_charge_nobody,
                                              .step = step_native,
                                              .poll_at = poll_never,
                                              .report = report_nothing};

static const struct cgpu_discipline *
discipline_of(uint32_t policy)
{
    switch (policy) {
    case CGPU_POLICY_SOFT:
        return &cgpu_soft;
    case CGPU_POLICY_NATIVE:
        return &native;
    default:
        return &cgpu_turns;
    }
}

/* The caller has checked RULES: here a value out of range becomes the nearest one in range. */
void
cgpu_arbiter_set_rules(struct cgpu_arbiter *arbiter, const struct cgpu_rules *rules)
{
    if (arbiter->discipline != NULL && arbiter->discipline->leave != NULL) {
        arbiter->discipline->leave(arbiter);
    }
    cgpu_corun_change(arbiter, arbiter->now);
    arbiter->rules = *rules;
    arbiter->rules.max_inst += rules->max_inst == 0;
    arbiter->rules.prio_ratio = (uint32_t)cgpu_larger(1, cgpu_lesser(rules->prio_ratio, 99));
    if (rules->policy >= CGPU_POLICIES) {
        arbiter->rules.policy = CGPU_POLICY_NATIVE;
    }
    arbiter->discipline = discipline_of(arbiter->rules.policy);
    entitle(arbiter);
}

int
cgpu_arbiter_add(struct cgpu_arbiter *arbiter, uint32_t weight, bool high_priority, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant *tenant = &arbiter->tenants[i];

        if (!cgpu_tenant_is_present(tenant)) {
            cgpu_corun_change(arbiter, now);
            cgpu_state_change(arbiter, tenant, CGPU_STATE_AWAY, now);
            tenant->high = high_priority;
            tenant->claim.weight = weight;
            tenant->claim.high_priority = high_priority;
            tenant->virtual_ns = arbiter->floor_ns[high_priority];
            tenant->active_ns = now;   /* it comes to work: the others are no longer alone */
            if (arbiter->turns == 0) { /* an earlier arbiter may have let it in */
                cgpu_state_change(arbiter, tenant, CGPU_STATE_DRAINING, now);
                tenant->unscheduled = true;
            }
            entitle(arbiter);
            return i;
        }
    }
    return CGPU_EFULL;
}

static bool
exists(const struct cgpu_arbiter *arbiter, int index)
{
    return index >= 0 && index < CGPU_MAX_TENANTS &&
           cgpu_tenant_is_present(&arbiter->tenants[index]);
}

void
cgpu_arbiter_set_container(struct cgpu_arbiter *arbiter, int index, uint64_t container)
{
    if (exists(arbiter, index)) {
        arbiter->tenants[index].container = container;
    }
}

void
cgpu_arbiter_set_memory(struct cgpu_arbiter *arbiter, int index, uint32_t mib)
{
    if (exists(arbiter, index)) {
        arbiter->tenants[index].claim.memory_mib = mib;
        entitle(arbiter);
    }
}

void
cgpu_arbiter_set_tenant(struct cgpu_arbiter *arbiter, int index, uint32_t weight,
                        bool high_priority)
{
    struct cgpu_tenant *tenant;

    if (!exists(arbiter, index)) {
        return;
    }
    tenant = &arbiter->tenants[index];
    if (tenant->high != high_priority) {
        uint64_t ahead = cgpu_since(tenant->virtual_ns, arbiter->floor_ns[tenant->high]);

        tenant->virtual_ns = arbiter->floor_ns[high_priority] + ahead;
        tenant->high = high_priority;
    }
    tenant->claim.weight = weight;
    tenant->claim.high_priority = high_priority;
    cgpu_corun_change(arbiter, arbiter->now);
    entitle(arbiter);
}

void
cgpu_arbiter_remove(struct cgpu_arbiter *arbiter, int index, uint64_t now)
{
    if (!exists(arbiter, index)) {
        return;
    }
    cgpu_corun_change(arbiter, now);
    cgpu_state_change(arbiter, &arbiter->tenants[index], CGPU_STATE_NONE, now);
    entitle(arbiter);
}

uint64_t
cgpu_arbiter_step(struct cgpu_arbiter *arbiter, uint64_t now, const struct cgpu_demand *demands,
                  enum cgpu_gate *gates)
{
    now = cgpu_larger(now, arbiter->now);
    cgpu_charge_time(arbiter, now, demands);
    arbiter->discipline->step(arbiter, now);
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        gates[i] = arbiter->tenants[i].gate;
    }
    arbiter->now = now;
    return arbiter->discipline->poll_at(arbiter, now);
}

void
cgpu_arbiter_skip(struct cgpu_arbiter *arbiter, uint64_t now)
{
    arbiter->now = cgpu_larger(now, arbiter->now);
    cgpu_corun_end(arbiter, arbiter->now); /* nobody measured what was done meanwhile */
}

bool
cgpu_arbiter_is_quiet(const struct cgpu_arbiter *arbiter, int index)
{
    return exists(arbiter, index) && arbiter->holder == index && arbiter->tenants[index].quiet;
}

uint64_t
cgpu_arbiter_expired(const struct cgpu_arbiter *arbiter)
{
    return arbiter->expired;
}
