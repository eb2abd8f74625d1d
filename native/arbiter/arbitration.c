/* Arbitration of one GPU: see arbitration.h. The thread is arbitration_thread.c. */
#define _GNU_SOURCE 1

#include "arbitration.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "arbiter_state.h"
#include "arbitration_thread.h"
#include "futex.h"
#include "ledger.h"

enum { INST_MOST = 25, RATIO_LEAST = 20, RATIO_MOST = 99 };

static bool
is_valid(const struct cgpu_rules *rules)
{
    return rules->policy < CGPU_POLICIES && rules->max_inst >= 1 && rules->max_inst <= INST_MOST &&
           rules->prio_ratio >= RATIO_LEAST && rules->prio_ratio <= RATIO_MOST;
}

/* The caller, who has the mutex, has changed something: the thread is to look at once. */
static void
announce(struct cgpu_arbitration *arbitration)
{
    arbitration->published_ns = 0;
    /* relaxed: what was changed is protected by the mutex */
    __atomic_add_fetch(&arbitration->control, 1, __ATOMIC_RELAXED);
    cgpu_futex_wake(&arbitration->control, FUTEX_WAKE_PRIVATE, INT_MAX);
}

static void
release(struct cgpu_arbitration *arbitration)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (arbitration->containers[i] != NULL) {
            cgpu_container_close(arbitration->containers[i]);
        }
    }
    pthread_mutex_destroy(&arbitration->mutex);
    free(arbitration->arbiter);
    free(arbitration);
}

/* The thread takes no signal: the server's own handlers are for its own threads. */
static int
make_thread(struct cgpu_arbitration *arbitration)
{
    sigset_t all;
    sigset_t before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&arbitration->thread, NULL, cgpu_arbitration_run, arbitration);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int
cgpu_arbitration_start(uint32_t policy, uint32_t max_inst, uint32_t prio_ratio,
                       struct cgpu_arbitration **out)
{
    const struct cgpu_rules rules = {policy, max_inst, prio_ratio};
    struct cgpu_arbitration *arbitration;
    int error = ENOMEM;

    if (out == NULL || !is_valid(&rules)) {
        return CGPU_EINVAL;
    }
    arbitration = calloc(1, sizeof *arbitration);
    if (arbitration == NULL) {
        return CGPU_EIO;
    }
    pthread_mutex_init(&arbitration->mutex, NULL);
    arbitration->arbiter = malloc(cgpu_arbiter_size());
    if (arbitration->arbiter != NULL) {
        cgpu_arbiter_init(arbitration->arbiter, &rules, cgpu_arbitration_now());
        error = make_thread(arbitration);
    }
    if (error != 0) {
        release(arbitration);
        errno = error;
        return CGPU_EIO;
    }
    *out = arbitration;
    return CGPU_OK;
}

void
cgpu_arbitration_stop(struct cgpu_arbitration *arbitration)
{
    if (arbitration == NULL) {
        return;
    }
    pthread_mutex_lock(&arbitration->mutex);
    arbitration->stopping = true;
    announce(arbitration);
    pthread_mutex_unlock(&arbitration->mutex);
    pthread_join(arbitration->thread, NULL);
    release(arbitration);
}

int
cgpu_arbitration_set_rules(struct cgpu_arbitration *arbitration, uint32_t policy, uint32_t max_inst,
                           uint32_t prio_ratio)
{
    const struct cgpu_rules rules = {policy, max_inst, prio_ratio};

    if (arbitration == NULL || !is_valid(&rules)) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->mutex);
    cgpu_arbiter_set_rules(arbitration->arbiter, &rules);
    announce(arbitration);
    pthread_mutex_unlock(&arbitration->mutex);
    return CGPU_OK;
}

static int
add_locked(struct cgpu_arbitration *arbitration, struct cgpu_container *container, uint32_t weight,
           bool high_priority)
{
    uint64_t now = cgpu_arbitration_now();
    int place = cgpu_arbiter_add(arbitration->arbiter, weight, high_priority, now);

    if (place < 0) {
        return place;
    }
    if (arbitration->settled_ns == 0) {
        arbitration->settled_ns = now + CGPU_ARBITRATION_SETTLE_NS;
    }
    container->key = ++arbitration->next_key;
    arbitration->containers[place] = container;
    arbitration->figures.tenants += 1;
    announce(arbitration);
    return CGPU_OK;
}

int
cgpu_arbitration_add(struct cgpu_arbitration *arbitration, const char *limits, const char *ledger,
                     uint32_t place, uint32_t weight, uint32_t high_priority, uint32_t *key)
{
    struct cgpu_container *container;
    int status;

    if (arbitration == NULL || limits == NULL || ledger == NULL || key == NULL || weight < 1 ||
        weight > INST_MOST) {
        return CGPU_EINVAL;
    }
    status = cgpu_container_open(limits, ledger, place, &container);
    if (status != CGPU_OK) {
        return status;
    }
    pthread_mutex_lock(&arbitration->mutex);
    status = add_locked(arbitration, container, weight, high_priority != 0);
    *key = container->key;
    pthread_mutex_unlock(&arbitration->mutex);
    if (status != CGPU_OK) {
        cgpu_container_close(container);
    }
    return status;
}

/* The arbiter's place of the container KEY, or CGPU_ENOTFOUND. */
static int
place_of(const struct cgpu_arbitration *arbitration, uint32_t key)
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
    int place;

    if (arbitration == NULL || weight < 1 || weight > INST_MOST) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->mutex);
    place = place_of(arbitration, key);
    if (place >= 0) {
        cgpu_arbiter_set_tenant(arbitration->arbiter, place, weight, high_priority != 0);
        announce(arbitration);
    }
    pthread_mutex_unlock(&arbitration->mutex);
    return place >= 0 ? CGPU_OK : place;
}

int
cgpu_arbitration_remove(struct cgpu_arbitration *arbitration, uint32_t key)
{
    struct cgpu_container *container = NULL;
    int place;

    if (arbitration == NULL) {
        return CGPU_EINVAL;
    }
    pthread_mutex_lock(&arbitration->mutex);
    place = place_of(arbitration, key);
    if (place >= 0) {
        cgpu_arbiter_remove(arbitration->arbiter, place, cgpu_arbitration_now());
        container = arbitration->containers[place];
        arbitration->containers[place] = NULL;
        arbitration->figures.tenants -= 1;
        announce(arbitration);
    }
    pthread_mutex_unlock(&arbitration->mutex);
    if (container == NULL) {
        return place;
    }
    cgpu_container_close(
        container); /* the thread may be asleep on its bell: the kernel allows that */
    return CGPU_OK;
}

void
cgpu_arbitration_read(struct cgpu_arbitration *arbitration, struct cgpu_arbitration_figures *out)
{
    struct timespec used = {0};
    clockid_t clock;

    pthread_mutex_lock(&arbitration->mutex);
    *out = arbitration->figures;
    out->expired = (uint32_t)arbitration->arbiter->expired;
    if (pthread_getcpuclockid(arbitration->thread, &clock) == 0 &&
        clock_gettime(clock, &used) == 0) {
        out->cpu_ns = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
    }
    pthread_mutex_unlock(&arbitration->mutex);
}
