/*
 * The ledger: how much device memory the processes of one container hold, on each of its GPUs.
 *
 * It is one file per container, mapped by all its processes; GPUs have the numbers that they have
 * in the container's limits. A charge is exact: under a GPU's lock the request either fits under
 * the cap or changes nothing. Each process has a slot, and an open-file-description lock on the
 * slot's byte, which the kernel drops when the process dies. A process that needs the memory then
 * gives back the dead slot's charge.
 */
#ifndef CGPU_LEDGER_H
#define CGPU_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "ledger/ledger_file.h"
#include "limits.h"
#include "status.h"

/* cffi: begin */
struct cgpu_ledger; /* one process's attachment; opaque, see ledger.c */

struct cgpu_process {
    uint32_t pid; /* as the process itself sees it (its own pid namespace) */
    uint32_t slot;
    uint64_t used_bytes;
};

/* A living process that holds memory: its id in its pid namespace, its bytes on each GPU. */
struct cgpu_holder {
    uint32_t pid;
    uint32_t slot;
    uint64_t used_bytes[CGPU_MAX_GPUS];
    uint64_t shared_bytes[CGPU_MAX_GPUS]; /* in addition: imported, and paid for by others */
};

/* A copy of a whole ledger, read at one time. */
struct cgpu_survey {
    uint32_t count;   /* of holders */
    uint32_t asked;   /* how many processes, dead ones too, the kernel was asked about */
    uint32_t unasked; /* count as living: asking would be slow, due to the container's locks */
    uint32_t reserved;
    uint64_t paid_bytes[CGPU_MAX_GPUS]; /* shared, and charged to one of those who have them */
    uint32_t importers[CGPU_MAX_GPUS];  /* how many processes have imported any */
    struct cgpu_holder holders[CGPU_LEDGER_SLOTS];
};

/*
 * For the host: make an empty ledger NAME in the directory DIRFD, with mode 0666 whatever the
 * umask.
 */
int cgpu_ledger_create(int dirfd, const char *name);

/*
 * For a process: map the ledger at PATH and take a slot for process PID. The attachment has memory
 * of its own (mmap), so that no allocator of the host program is called. A forked child does not
 * inherit it: there *OUT reads as detached, and the child must attach again.
 */
int cgpu_ledger_attach(const char *path, uint32_t pid, struct cgpu_ledger **out);

/*
 * For any reader: open the ledger at PATH without a slot. It is read through copies, because a
 * container may truncate the file. A charge through it gives CGPU_EINVAL. Each read asks the kernel
 * which processes live (0.1 ms), unless the container's locks make that too costly.
 */
int cgpu_ledger_observe(const char *path, struct cgpu_ledger **out);

/* Give back the slot with all its charges, and unmap the file. */
void cgpu_ledger_detach(struct cgpu_ledger *ledger);

/*
 * Charge BYTES on GPU to this process if the container's total stays within CAP; *CHARGED is then
 * BYTES. CGPU_EOVERCAP: nothing has changed, except that charges of dead processes were given back.
 */
int cgpu_ledger_charge(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                       uint64_t *charged);

/* Give BYTES back. CGPU_EINVAL: this process holds less, and nothing has changed. */
int cgpu_ledger_release(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes);

/*
 * The bytes that all living processes hold on GPU. This takes no lock and makes no system call, but
 * at most every 200 ms it looks for dead slots.
 */
uint64_t cgpu_ledger_used(struct cgpu_ledger *ledger, uint32_t gpu);

/* Bytes held by this process on GPU. */
uint64_t cgpu_ledger_own(struct cgpu_ledger *ledger, uint32_t gpu);

/*
 * The sum on GPU that charges are compared with. It is what all living processes hold, unless one
 * has died since the last check, or the file was tampered with.
 */
uint64_t cgpu_ledger_total(struct cgpu_ledger *ledger, uint32_t gpu);

/* Requests refused on GPU since the ledger was made. */
uint64_t cgpu_ledger_refused(struct cgpu_ledger *ledger, uint32_t gpu);

/*
 * Fill OUT with at most CAPACITY living processes that hold memory on GPU, or on any GPU if it is
 * CGPU_MAX_GPUS; *COUNT is how many there are.
 */
int cgpu_ledger_processes(struct cgpu_ledger *ledger, uint32_t gpu, struct cgpu_process *out,
                          size_t capacity, size_t *count);

/* Fill OUT with what all processes hold on all GPUs, read at one time. */
int cgpu_ledger_survey(struct cgpu_ledger *ledger, struct cgpu_survey *out);

/*
 * The time (CLOCK_MONOTONIC, ns) until which this ledger's processes count as living without being
 * asked about, because asking took too long; 0: they are asked about. cgpu_ledger_rest gives this
 * time to another observer of the same file.
 */
uint64_t cgpu_ledger_rests(const struct cgpu_ledger *ledger);
void cgpu_ledger_rest(struct cgpu_ledger *ledger, uint64_t until);

/*
 * Open another descriptor of the attachment's file, which the caller closes. It is opened by its
 * path; if the path leads elsewhere, as after chroot, it is a copy of the descriptor that was kept.
 * -1: there is neither. Do not trust any descriptor: a program may close any number at any time and
 * open something else with it.
 */
int cgpu_ledger_reopen(const struct cgpu_ledger *ledger);
/* cffi: end */

#endif
