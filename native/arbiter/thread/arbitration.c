/* Arbitration of one GPU: see arbitration.h. The thread is arbitration_thread.c. */
#define _GNU_SOURCE 1

#include "arbiter/thread/arbitration.h"

#include <errno.h>
#include <stdlib.h>

#include "arbiter/arbiter_state.h"
#include "arbiter/thread/arbitration_thread.h"
#include "ledger/ledger.h"

enum { INST_MOST = 25, RATIO_LEAST = 20, RATIO_MOST = 99, MIB_SHIFT = 20 };

static bool
is_valid(const struct cgpu_rules *rules)
{
    return rules->policy < CGPU_POLICIES && rules->max_inst >= 1 && rules->max_inst <= INST_MOST &&
           rules->prio_ratio >= RATIO_LEAST && rules->prio_ratio <= RATIO_MOST;
}

static void
release(struct cgpu_arbitration *arbitration)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (arbitration->containers[i] != NULL) {
            cgpu_container_close(arbitration->containers[i]);
        }
    }
    free(arbitration->arbiter);
    free(arbitration);
}

/* Take the GPU from its thread, which goes on with its other GPUs or ends. */
static void
leave(struct cgpu_arbitration *arbitration)
{
    struct cgpu_arbitration_thread *thread = arbitration->thread;
    struct cgpu_group *group = &thread->group;
    uint32_t index = 0;
    bool last;

    pthread_mutex_lock(&thread->mutex);
    cgpu_arbitration_thread_account(thread);
    while (thread->gpus[index] != arbitration) {
        index += 1;
    }
    group->count -= 1;
    thread->gpus[index] = thread->gpus[group->count];
    group->gpus[index] = group->gpus[group->count];
    last = group->count == 0;
    cgpu_arbitration_thread_announce(thread);
    pthread_mutex_unlock(&thread->mutex);
    if (last) {
        cgpu_arbitration_thread_stop(thread);
    }
}

static void
enter(struct cgpu_arbitration *arbitration, struct cgpu_arbitration_thread *thread)
{
    struct cgpu_group *group = &thread->group;

    pthread_mutex_lock(&thread->mutex);
    arbitration->thread = thread;
    thread->gpus[group->count] = arbitration;
    group->gpus[group->count] = arbitration->arbiter;
    group->count += 1;
    cgpu_arbitration_thread_announce(thread);
    pthread_mutex_unlock(&thread->mutex);
}

int
cgpu_arbitration_start(uint32_t policy, uint32_t max_inst, uint32_t prio_ratio,
                       struct cgpu_arbitration **out)
{
    const struct cgpu_rules rules = {policy, max_inst, prio_ratio};
    struct cgpu_arbitration *arbitration;
    struct cgpu_arbitration_thread *thread = NULL;

    if (out == NULL || !is_valid(&rules)) {
        return CGPU_EINVAL;
    }
    arbitration = calloc(1, sizeof *arbitration);
    if (arbitration == NULL) {
        return CGPU_EIO;
    }
    arbitration->arbiter = malloc(cgpu_arbiter_size());
    if (arbitration->arbiter != NULL) {
        cgpu_arbiter_init(arbitration->arbiter, &rules, cgpu_clock_now());
        thread = cgpu_arbitration_thread_start();
    }
    if (thread == NULL) {
        int error = errno;

        release(arbitration);
        errno = error;
        return CGPU_EIO;
    }
    enter(arbitration, thread);
    *out = arbitration;
    return CGPU_OK;
}

void
cgpu_arbitration_stop(struct cgpu_arbitration *arbitration)
{
    if (arbitration != NULL) {
        leave(arbitration);
        release(arbitration);
    }
}

/* Whether the GPUs share one thread, and no other GPU does. */
static bool
are_together(struct cgpu_arbitration **arbitrations, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (arbitrations[i]->thread != arbitrations[0]->thread) {
            return false;
        }
    }
    return arbitrations[0]->thread->group.count == count;
}

int
cgpu_arbitration_join(struct cgpu_arbitration **arbitrations, uint32_t count)
{
    struct cgpu_arbitration_thread *thread;

    if (arbitrations == NULL || count < 1 || count > CGPU_MAX_GPUS) {
        return CGPU_EINVAL;
    }
    if (are_together(arbitrations, count)) {
        return CGPU_OK;
    }
    thread = cgpu_arbitration_thread_start();
    if (thread == NULL) {
        return CGPU_EIO;
    }
    for (uint32_t i = 0; i < count; i++) {
        leave(arbitrations[i]);
        enter(arbitrations[i], thread);
    }
    return CGPU_OK;
}

int
cgpu_arbitration_set_rules(struct cgpu_arbitration *arbitration, uint32_t policy, uint32_t max_inst,
                           uint32_t prio_ratio)
{
    const struct cgpu_rules rules = {policy, max_inst, prio_ratio};

    if (arbitration == NULL || !is_valid(&rules)) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->thread->mutex);
    cgpu_arbiter_set_rules(arbitration->arbiter, &rules);
    cgpu_arbitration_thread_announce(arbitration->thread);
    pthread_mutex_unlock(&arbitration->thread->mutex);
    return CGPU_OK;
}

static int
add_locked(struct cgpu_arbitration *arbitration, struct cgpu_container *container, uint32_t weight,
           bool high_priority)
{
    int index = cgpu_arbiter_add(arbitration->arbiter, weight, high_priority, cgpu_clock_now());

    if (index < 0) {
        return index;
    }
    cgpu_arbiter_set_container(arbitration->arbiter, index, container->identity);
    cgpu_arbiter_set_memory(arbitration->arbiter, index,
                            (uint32_t)(container->entry->cap_bytes >> MIB_SHIFT));
    container->key = ++arbitration->next_key;
    arbitration->containers[index] = container;
    arbitration->figures.tenants += 1;
    cgpu_arbitration_thread_announce(arbitration->thread);
    return CGPU_OK;
}

int
cgpu_arbitration_add(struct cgpu_arbitration *arbitration, const char *limits, const char *ledger,
                     uint32_t number, uint32_t weight, uint32_t high_priority, uint32_t *key)
{
    struct cgpu_container *container;
    int status;

    if (arbitration == NULL || limits == NULL || ledger == NULL || key == NULL ||
        weight > INST_MOST) {
        return CGPU_EINVAL;
    }
    status = cgpu_container_open(limits, ledger, number, &container);
    if (status != CGPU_OK) {
        return status;
    }
    pthread_mutex_lock(&arbitration->thread->mutex);
    status = add_locked(arbitration, container, weight, high_priority != 0);
    *key = container->key;
    pthread_mutex_unlock(&arbitration->thread->mutex);
    if (status != CGPU_OK) {
        cgpu_container_close(container);
    }
    return status;
}

void
cgpu_arbitration_begin(struct cgpu_arbitration *arbitration)
{
    pthread_mutex_lock(&arbitration->thread->mutex);
    arbitration->begun = true;
    cgpu_arbitration_thread_announce(arbitration->thread);
    pthread_mutex_unlock(&arbitration->thread->mutex);
}

/* The arbiter's index for the container KEY, or CGPU_ENOTFOUND. */
static int
index_of(const struct cgpu_arbitration *arbitration, uint32_t key)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (arbitration->containers[i] != NULL && arbitration->containers[i]->key == key) {
            return i;
        }
    }
    return CGPU_ENOTFOUND;
}

int
cgpu_arbitration_set_tenant(struct cgpu_arbitration *arbitration, uint32_t key, uint32_t weight,
                            uint32_t high_priority)
{
    int index;

    if (arbitration == NULL || weight > INST_MOST) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->thread->mutex);
    index = index_of(arbitration, key);
    if (index >= 0) {
        cgpu_arbiter_set_tenant(arbitration->arbiter, index, weight, high_priority != 0);
        cgpu_arbitration_thread_announce(arbitration->thread);
    }
    pthread_mutex_unlock(&arbitration->thread->mutex);
    return index >= 0 ? CGPU_OK : index;
}

int
cgpu_arbitration_remove(struct cgpu_arbitration *arbitration, uint32_t key)
{
    struct cgpu_container *container = NULL;
    int index;

    if (arbitration == NULL) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->thread->mutex);
    index = index_of(arbitration, key);
    if (index >= 0) {
        cgpu_arbiter_remove(arbitration->arbiter, index, cgpu_clock_now());
        container = arbitration->containers[index];
        arbitration->containers[index] = NULL;
        arbitration->figures.tenants -= 1;
        cgpu_arbitration_thread_announce(arbitration->thread);
    }
    pthread_mutex_unlock(&arbitration->thread->mutex);
    if (container == NULL) {
        return index;
    }
    cgpu_container_close(
        container); /* the thread may be asleep on its bell: the kernel allows that */
    return CGPU_OK;
}

void
cgpu_arbitration_read(struct cgpu_arbitration *arbitration, struct cgpu_arbitration_figures *out)
{
    pthread_mutex_lock(&arbitration->thread->mutex);
    cgpu_arbitration_thread_account(arbitration->thread);
    *out = arbitration->figures;
    out->expired = (uint32_t)arbitration->arbiter->expired;
    pthread_mutex_unlock(&arbitration->thread->mutex);
}
