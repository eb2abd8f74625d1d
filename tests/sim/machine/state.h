/* Layout of the machine file. Private to tests/sim/machine. */
#ifndef CGPU_SIM_STATE_H
#define CGPU_SIM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "machine.h"

enum {
    STATE_MAGIC = 0x4d495347, /* the bytes "GSIM" */
    STATE_VERSION = 5,
    STATE_RING = 1024,  /* work items in flight per process and GPU, one less than that */
    STATE_BUCKETS = 16, /* history of utilisation, in buckets of BUCKET_NS */
    STATE_OBJECTS = 1024,
    STATE_FAULTS = 16,
};

#define STATE_BUCKET_NS 100000000ull
#define STATE_SLICE_NS  1000000ull
#define STATE_SWITCH_NS 50000ull    /* unless the machine is described otherwise */
#define STATE_REAP_NS   10000000ull /* who waits looks for dead processes so often */

/* Bytes of the file that are only locked, far from its contents. */
#define STATE_LOCK_BYTE   (1ll << 50)
#define STATE_SLOT_BYTE   (STATE_LOCK_BYTE + 0x10000)
#define STATE_PID_BYTE    (STATE_LOCK_BYTE + 0x20000)
#define STATE_OBJECT_BYTE (STATE_LOCK_BYTE + 0x30000)

/* Contents of objects start here. */
#define STATE_DATA_OFFSET (1ull << 32)

struct state_history {
    uint64_t busy_ns;
    uint64_t bucket_number[STATE_BUCKETS];
    uint64_t bucket_ns[STATE_BUCKETS];
};

struct state_item {
    uint64_t arrival_ns;
    uint64_t duration_ns;
    uint64_t work_ns; /* of all items up to this one, it included */
    uint64_t end_ns;  /* 0: not done */
};

/*
 * Items are put in by the process alone, without the machine's lock, and taken out under it. Each
 * side stores its own counter when the item is ready for the other.
 */
struct state_queue {
    uint64_t submitted; /* number of the newest item */
    uint64_t work_ns;   /* of all of them */
    uint64_t completed; /* number of the newest done one */
    uint64_t had_ns;    /* of the item after it, before it was interrupted */
    struct state_history history;
    struct state_item ring[STATE_RING];
};

struct state_process {
    uint32_t in_use;
    uint32_t pid;
    uint64_t tenancy; /* unique over time: tells this tenant of the slot from the next */
    uint64_t pid_namespace;
    char command[CGPU_MACHINE_COMMAND_SIZE];
    char tag[CGPU_MACHINE_TAG_SIZE];
    uint64_t used_bytes[CGPU_MACHINE_MAX_GPUS];
    uint32_t contexts[CGPU_MACHINE_MAX_GPUS];
    struct state_queue queues[CGPU_MACHINE_MAX_GPUS];
};

struct state_timeline {
    uint64_t now_ns;    /* simulated up to here */
    uint64_t slice_end; /* of the running process */
    uint32_t running;   /* slot whose turn it is */
    uint32_t reserved;
    struct state_history busy, copies;
};

struct state_object {
    uint32_t in_use;
    uint32_t gpu;
    uint32_t payer; /* slot that made it */
    uint32_t reserved;
    uint64_t payer_tenancy;
    uint64_t bytes;
    uint64_t offset; /* in the machine file */
    uint64_t tag;
};

struct state_fault {
    char call[48];
    int32_t countdown; /* fires at the call that takes it to 0 */
    int32_t result;
    uint32_t delay_us;
    uint32_t kill;
    uint32_t repeat; /* fires at every later call too */
    uint32_t in_use;
};

struct state_loss {
    int32_t result;      /* NVML's error for the GPU; 0: it answers */
    uint32_t has_handle; /* its handle is still given */
};

struct state {
    uint32_t magic, version;
    uint64_t size;
    uint32_t gpu_count;
    uint32_t cuda_version;
    char driver_version[32];
    uint64_t next_tag;
    uint64_t switch_ns;     /* that a GPU takes to turn to another process */
    uint64_t dispatch_ns;   /* from a launch to its earliest begin */
    uint64_t completion_ns; /* from an end to its being seen */
    uint64_t reaped_ns;     /* when dead processes were last looked for by who waits */
    uint32_t in_order;      /* kernels run in order of arrival, whole */
    uint32_t process_high;  /* slots ever used */
    uint32_t object_high;   /* objects ever used */
    struct cgpu_machine_gpu gpus[CGPU_MACHINE_MAX_GPUS];
    struct state_loss losses[CGPU_MACHINE_MAX_GPUS];
    struct state_timeline timelines[CGPU_MACHINE_MAX_GPUS];
    struct state_fault faults[STATE_FAULTS];
    struct state_object objects[STATE_OBJECTS];
    struct state_process processes[CGPU_MACHINE_MAX_PROCESSES];
};

struct cgpu_machine {
    struct state *state;
    char path[4096];
    int map_fd; /* of mappings: a mapping keeps its file description, and its locks, alive in
                   children */
    int fd;     /* of locks */
    int slot;   /* -1: not attached */
    uint32_t visible[CGPU_MACHINE_MAX_GPUS];
    uint32_t visible_count;
    uint32_t references[STATE_OBJECTS]; /* this process's, of each object */
    pthread_mutex_t mutex;
};

/*
 * The machine's one critical section: the mutex keeps out the threads of this process, the file
 * lock the other processes. Neither outlives its holder, and every change inside leaves sums that
 * are sums.
 */
void cgpu_machine_lock(struct cgpu_machine *machine);
void cgpu_machine_unlock(struct cgpu_machine *machine);

int cgpu_machine_file_open(const char *path);
int cgpu_machine_map(const char *path, struct state **out, int *fd);
int cgpu_machine_file_lock(int fd, long long byte, short type, int wait);
int cgpu_machine_byte_is_locked(int fd, long long byte);

/* Under the lock. */
void cgpu_machine_reap(struct cgpu_machine *machine);
void cgpu_machine_reap_sometimes(struct cgpu_machine *machine, uint64_t now);
void cgpu_machine_reap_objects(struct cgpu_machine *machine);
uint64_t cgpu_machine_sum(struct cgpu_machine *machine, uint32_t gpu);
uint64_t cgpu_machine_paid_by(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot);
int cgpu_machine_reserve(struct cgpu_machine *machine, uint32_t gpu, uint64_t bytes);
void cgpu_machine_advance(struct cgpu_machine *machine, uint32_t gpu);
/* When SLOT's ITEM, not done yet, will end if nobody submits anything more. Just advanced. */
uint64_t cgpu_machine_forecast(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot,
                               uint64_t item);
/* GPU time that SLOT has had, up to this moment. Just advanced. */
uint64_t cgpu_machine_time_of(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot,
                              uint64_t now);

uint64_t cgpu_machine_now(void);
void cgpu_machine_history_add(struct state_history *history, uint64_t from, uint64_t to);
uint32_t cgpu_machine_history_percent(const struct state_history *history, uint64_t now);

#endif
