/*
 * The simulated machine: GPUs, who holds how much of their memory, and what they compute.
 *
 * One file per machine, mapped by every process that uses its GPUs, in whatever container. Nothing
 * in it needs a server: each process has a slot, held by an open-file-description lock on the
 * slot's byte that the kernel drops when the process dies, and totals are sums over living slots.
 * Both simulated libraries are built on this; it shares no code with native/, which it is there to
 * test.
 */
#ifndef CGPU_SIM_MACHINE_H
#define CGPU_SIM_MACHINE_H

#include <stddef.h>
#include <stdint.h>

enum {
    CGPU_MACHINE_MAX_GPUS = 16,
    CGPU_MACHINE_MAX_PROCESSES = 512,
    CGPU_MACHINE_COMMAND_SIZE = 128,
    CGPU_MACHINE_TAG_SIZE = 32,
};

enum cgpu_machine_status {
    CGPU_MACHINE_OK = 0,
    CGPU_MACHINE_ENOMACHINE = -1, /* no machine file, or not one of ours */
    CGPU_MACHINE_ENOMEMORY = -2,  /* the GPU has not that much memory free */
    CGPU_MACHINE_EFULL = -3,      /* no free process slot or object */
    CGPU_MACHINE_EINVAL = -4,
};

/* What a GPU is. Set when the machine is made, constant after that. */
struct cgpu_machine_gpu {
    char name[64];
    uint8_t uuid[16];        /* the bytes behind GPU-xxxxxxxx-xxxx-... */
    uint64_t total_bytes;    /* as NVML reports it */
    uint64_t reserved_bytes; /* the firmware's; part of total, never free */
    uint64_t context_bytes;  /* what one CUDA context costs */
    uint32_t minor;          /* N of the device node gpuN */
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t capability_major, capability_minor;
    uint32_t sm_count;
    uint32_t threads_per_sm;
    uint32_t sm_clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    uint32_t island;   /* of the GPUs with NVLinks between them; 0: none */
    uint32_t nvlinks;  /* to each other GPU of the island, or to its switch */
    uint32_t switched; /* the island has an NVSwitch */
    uint32_t mig;      /* MIG mode is on; there are no instances */
    uint32_t reserved[4];
};

/* A process that uses a GPU. */
struct cgpu_machine_process {
    uint32_t slot;
    uint32_t pid;           /* as the process itself sees it */
    uint32_t visible_pid;   /* as the caller sees it; 0: in a pid namespace the caller cannot see */
    uint32_t contexts;      /* CUDA contexts it has on the GPU */
    uint64_t pid_namespace; /* inode number of its pid namespace */
    uint64_t used_bytes;    /* on the GPU asked about */
    uint64_t busy_ns;       /* GPU time it has had, up to this moment */
    uint32_t utilization;   /* percent of the last second */
    char command[CGPU_MACHINE_COMMAND_SIZE]; /* path of the executable */
    char tag[CGPU_MACHINE_TAG_SIZE];         /* $CGPU_SIM_TAG of the process */
};

struct cgpu_machine; /* this process's attachment */

/*
 * Map the machine of this process: $CGPU_SIM_MACHINE, else /dev/cgpu-sim/machine, else `machine`
 * beside the shared library that contains this code. One attachment per library and process: a
 * second call returns the same. It is never closed (closing would drop the locks that other
 * libraries of the process hold on the file), and it follows fork: the child has one without a
 * slot.
 */
int cgpu_machine_open(struct cgpu_machine **out);

/* CUDA only: take a process slot. Idempotent. CGPU_MACHINE_EFULL. */
int cgpu_machine_attach(struct cgpu_machine *machine);

/* GPUs whose device node exists for this process, in PCI order. INDEX below counts these. */
uint32_t cgpu_machine_gpu_count(struct cgpu_machine *machine);
const struct cgpu_machine_gpu *cgpu_machine_gpu(struct cgpu_machine *machine, uint32_t index);

uint32_t cgpu_machine_cuda_version(struct cgpu_machine *machine);      /* 12040 */
const char *cgpu_machine_driver_version(struct cgpu_machine *machine); /* "550.163.01" */

/* Take BYTES of GPU memory for this process (attached), or nothing: CGPU_MACHINE_ENOMEMORY. */
int cgpu_machine_take(struct cgpu_machine *machine, uint32_t index, uint64_t bytes);
void cgpu_machine_give(struct cgpu_machine *machine, uint32_t index, uint64_t bytes);
void cgpu_machine_count_context(struct cgpu_machine *machine, uint32_t index, int32_t change);

/* Bytes held by all living processes, without reserved_bytes. */
uint64_t cgpu_machine_used(struct cgpu_machine *machine, uint32_t index);

/* At most CAPACITY living processes with a context or memory on the GPU; *COUNT is how many there
 * are. */
int cgpu_machine_processes(struct cgpu_machine *machine, uint32_t index,
                           struct cgpu_machine_process *out, size_t capacity, size_t *count);

/* Percent of the last second in which the GPU computed, and in which it moved memory. */
uint32_t cgpu_machine_utilization(struct cgpu_machine *machine, uint32_t index);
uint32_t cgpu_machine_memory_utilization(struct cgpu_machine *machine, uint32_t index);
uint64_t cgpu_machine_busy_ns(struct cgpu_machine *machine,
                              uint32_t index); /* since the machine was made */

/*
 * Compute. A process has one in-order queue per GPU; processes with work take turns of about 1 ms,
 * turning to another takes a while, and a kernel that runs is not interrupted. Submit returns the
 * number of the work item, in order from 1. The caller lets one thread submit at a time, and only
 * while there is room: _await_room, which may sleep, else.
 */
int cgpu_machine_has_room(struct cgpu_machine *machine, uint32_t index);
void cgpu_machine_await_room(struct cgpu_machine *machine, uint32_t index);
uint64_t cgpu_machine_submit(struct cgpu_machine *machine, uint32_t index, uint64_t duration_ns,
                             int is_copy);
/* Whether launches begin late, or ends are seen late: so it is with a value to write, too. */
int cgpu_machine_is_late(const struct cgpu_machine *machine);
int cgpu_machine_done(struct cgpu_machine *machine, uint32_t index, uint64_t item);
void cgpu_machine_wait(struct cgpu_machine *machine, uint32_t index, uint64_t item);
/* When it may have ended (CLOCK_MONOTONIC ns), in MOST_NS at the latest; item 0: just then. */
uint64_t cgpu_machine_next_look(struct cgpu_machine *machine, uint32_t index, uint64_t item,
                                uint64_t most_ns);
/* Sleeps until then. */
void cgpu_machine_nap(struct cgpu_machine *machine, uint32_t index, uint64_t item,
                      uint64_t most_ns);
/* When the item ended (CLOCK_MONOTONIC ns); 0: not yet. Kept for the last 1,000 items only. */
uint64_t cgpu_machine_end_time(struct cgpu_machine *machine, uint32_t index, uint64_t item);

/*
 * Objects: memory that several processes share (exported VMM handles, IPC). Its bytes are a region
 * of the machine file, so they can be mapped in any container. It lives, and is counted once, while
 * any process has a reference or any exported descriptor is open. References are counted per
 * process.
 */
int cgpu_machine_object_create(struct cgpu_machine *machine, uint32_t index, uint64_t bytes,
                               uint32_t *object);
/* Likewise, out of BYTES that this process already holds: the sum stays the same throughout. */
int cgpu_machine_object_convert(struct cgpu_machine *machine, uint32_t index, uint64_t bytes,
                                uint32_t *object);
int cgpu_machine_object_is_held(struct cgpu_machine *machine,
                                uint32_t object); /* by this process */
int cgpu_machine_object_retain(struct cgpu_machine *machine, uint32_t object);
void cgpu_machine_object_release(struct cgpu_machine *machine, uint32_t object);
/* Map it at ADDRESS (MAP_FIXED) or anywhere (NULL); MAP_FAILED. */
void *cgpu_machine_object_map(struct cgpu_machine *machine, uint32_t object, void *address,
                              uint64_t offset, uint64_t bytes);
uint64_t cgpu_machine_object_bytes(struct cgpu_machine *machine, uint32_t object);
int cgpu_machine_object_gpu(struct cgpu_machine *machine, uint32_t object, uint32_t *index);
uint64_t cgpu_machine_object_tag(struct cgpu_machine *machine,
                                 uint32_t object); /* unique over time */
int cgpu_machine_object_export(struct cgpu_machine *machine, uint32_t object); /* fd, or -1 */
int cgpu_machine_object_import(struct cgpu_machine *machine, int fd,
                               uint32_t *object); /* with a reference */

/*
 * NVML's error for a GPU that is lost (see cgpu_sim_lose in create.c); 0: it answers. *HAS_HANDLE:
 * whether its handle is still given.
 */
int cgpu_machine_loss(struct cgpu_machine *machine, uint32_t index, int *has_handle);

/* Faults: what the machine was set to do with this call of CALL (see cgpu_sim_inject in create.c).
 */
int cgpu_machine_fault(struct cgpu_machine *machine, const char *call);

#endif
