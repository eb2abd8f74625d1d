/* A container under arbitration: its files, and what they show of one GPU. */
#ifndef CGPU_CONTAINER_H
#define CGPU_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "arbiter/arbiter.h"
#include "ledger/ledger_file.h"
#include "limits.h"

/* A process's work, as it was last seen. */
struct cgpu_container_work {
    uint32_t owner;
    bool dead;
    uint64_t asked_ns; /* when it was last found alive */
    uint64_t busy_ns;
    uint32_t done_us;
};

struct cgpu_container {
    struct cgpu_limits *limits;
    struct cgpu_limits_gpu *entry; /* of the GPU, in it */
    uint64_t identity;             /* of a container with several GPUs, the same on each; else 0 */
    void *bells;                   /* of the ledger, up to the last bell */
    int ledger;
    uint32_t key;
    uint32_t number;
    uint32_t bell;    /* as read before everything else; a later ring ends a sleep */
    uint32_t asks;    /* how many processes this sample has asked for */
    uint64_t paid_ns; /* ask for no process before this time */
    bool broken;      /* the ledger was cut short or replaced */
    uint64_t busy_ns, done_ns;
    bool sampled;
    struct cgpu_ledger_gpu gpu;  /* as last read */
    uint64_t stalls, stalled_ns; /* since the first sample */
    struct cgpu_container_work works[CGPU_LEDGER_WORKS];
};

/*
 * Open the container with these files, in which the GPU has NUMBER. If an earlier arbiter left its
 * gate open and metered, the gate is closed. CGPU_EIO, CGPU_EFORMAT, CGPU_EINVAL for a number
 * beyond the container's GPUs.
 */
int cgpu_container_open(const char *limits, const char *ledger, uint32_t number,
                        struct cgpu_container **out);
void cgpu_container_close(struct cgpu_container *container);

/* Read what the container's living processes report at NOW. A broken container reports nothing. */
void cgpu_container_sample(struct cgpu_container *container, uint64_t now, struct cgpu_demand *out);

/* The gate word; and a function that sets it and wakes the threads that wait. */
uint32_t cgpu_container_gate(const struct cgpu_container *container);
void cgpu_container_set_gate(struct cgpu_container *container, enum cgpu_gate state, bool quiet);

/* Set `metered` in the limits without a change of the gate. */
void cgpu_container_set_metered(struct cgpu_container *container, uint32_t metered);

/* The futex word by which the container's processes ring. It is only to be waited on, not read. */
uint32_t *cgpu_container_bell(const struct cgpu_container *container);

/*
 * Publish REPORT, and that the arbiter was alive at NOW, to the container's processes and to tools.
 */
void cgpu_container_publish(struct cgpu_container *container,
                            const struct cgpu_tenant_report *report, uint64_t now);

#endif
