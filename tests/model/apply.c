/* Changes while the scenario runs. */
#include "model.h"

static void
kill_process(struct world *world, struct process *process)
{
    process->alive = false;
    process->at_thread = process->at_monitor = NEVER;
    process->work = (struct cgpu_ledger_work){0};
    gpu_forget(world, process);
}

/* SIGSTOP: whatever was due happens when it goes on. */
static void
signal_tenant(struct world *world, const struct change *change)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        struct process *process = &world->processes[i];

        if (process->tenant != change->tenant) {
            continue;
        }
        if (change->kind == CHANGE_KILL || change->kind == CHANGE_REMOVE) {
            kill_process(world, process);
        }
        process->stopped = change->kind == CHANGE_STOP;
    }
}

static void
apply_on(struct world *world, const struct change *change, int g)
{
    struct cgpu_arbiter *arbiter = world->gpus[g].arbiter;
    const struct tenant_spec *spec = &world->scenario->tenants[change->tenant];
    int *index = &world->tenants[change->tenant].indices[g];

    switch (change->kind) {
    case CHANGE_RULES:
        cgpu_arbiter_set_rules(arbiter, &change->rules);
        break;
    case CHANGE_WEIGHT:
        cgpu_arbiter_set_tenant(arbiter, *index, change->value, spec->high);
        break;
    case CHANGE_HIGH:
        cgpu_arbiter_set_tenant(arbiter, *index, spec->weight, change->value != 0);
        break;
    case CHANGE_REMOVE:
        cgpu_arbiter_remove(arbiter, *index, world->now);
        *index = -1;
        break;
    case CHANGE_STOP:
    case CHANGE_GO:
    case CHANGE_KILL:
        break;
    }
}

void
apply_change(struct world *world, const struct change *change)
{
    if (change->kind >= CHANGE_STOP) {
        signal_tenant(world, change);
    }
    for (int g = 0; g < world->gpu_count; g++) {
        apply_on(world, change, g);
    }
    if (change->kind < CHANGE_STOP || change->kind == CHANGE_REMOVE) {
        server_ring(world);
    }
}
