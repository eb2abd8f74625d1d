/*
 * The proxy of libnvidia-ml.so.1: what every hook may use. Design: docs/design/proxies.md.
 *
 * To add a hook: a row in hooks.def; its body, `enum nvml_return body(enum nvml_return
 * (*real)(...), ...)`; the class HOOK in entry_points.csv; a test. A body first calls the real
 * function, so that the driver itself answers for an invalid handle, a library that is not
 * initialised or a GPU without the feature. Then it replaces the GPU's figures by the container's.
 * The generated export has the guard: calls of the real library to its own exports pass through.
 *
 * Without limits or ledger, nothing about memory or processes is shown (NVML_ERROR_UNKNOWN).
 * Nothing is ever shown about a GPU that is not in the limits (NVML_ERROR_NOT_SUPPORTED, which no
 * tool shows as an error).
 */
#ifndef CGPU_NVML_SHIM_H
#define CGPU_NVML_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "ledger/ledger.h"
#include "nvml.h"

#define CGPU_EXPORT      __attribute__((visibility("protected")))
#define CGPU_EXPAND(...) __VA_ARGS__

enum {
    CGPU_NVML_PROCESSES = 1024 /* most entries of a list that are read */
};

/* The driver's own functions. One that the driver lacks returns NVML_ERROR_FUNCTION_NOT_FOUND. */
struct cgpu_nvml_real {
#define HOOK(name, body, parameters, arguments) enum nvml_return(*name) parameters;
#define REJECT(name)
#define REAL(name, parameters) enum nvml_return(*name) parameters;
#include "hooks.def"
#undef HOOK
#undef REJECT
#undef REAL
};

extern struct cgpu_nvml_real cgpu_nvml_real;

/* The exports (exports.c) and the bodies behind them. */
#define HOOK(name, body, parameters, arguments)                                                    \
    CGPU_EXPORT enum nvml_return name parameters;                                                  \
    enum nvml_return body(enum nvml_return(*real) parameters, CGPU_EXPAND parameters);
#define REJECT(name) CGPU_EXPORT enum nvml_return name(void);
#define REAL(name, parameters)
#include "hooks.def"
#undef HOOK
#undef REJECT
#undef REAL

/* ---- view.c: the container's part of a GPU ---- */

struct cgpu_nvml_view {
    uint64_t cap_bytes;
    uint64_t used_bytes;
};

/* Find the limits and the ledger. Called once, when the library is loaded. */
void cgpu_nvml_view_setup(void);

/* The container's part of DEVICE at this moment. */
enum nvml_return cgpu_nvml_view(struct nvml_device *device, struct cgpu_nvml_view *view);

/* Memory for lists, freed at the end of the scope: hooks may not call the program's allocator. */
struct cgpu_nvml_scratch {
    struct cgpu_process
        processes[CGPU_NVML_PROCESSES]; /* of the container, with memory on the GPU */
    size_t process_count;
    struct nvml_process_utilization utilization[CGPU_NVML_PROCESSES];
    union {
        struct nvml_process_sample samples[CGPU_NVML_PROCESSES];
        uint32_t pids[4 * CGPU_NVML_PROCESSES];
        struct nvml_process_v2 listed[CGPU_NVML_PROCESSES];
    };
};

#define CGPU_NVML_SCRATCH                                                                          \
    __attribute__((cleanup(cgpu_nvml_scratch_free))) struct cgpu_nvml_scratch *

/* Allocate memory for lists; NULL: there is none. */
struct cgpu_nvml_scratch *cgpu_nvml_scratch_make(void);
void cgpu_nvml_scratch_free(struct cgpu_nvml_scratch **scratch);

/* Put the container's processes on DEVICE into SCRATCH. */
enum nvml_return cgpu_nvml_own_processes(struct nvml_device *device,
                                         struct cgpu_nvml_scratch *scratch);

/* Whether PID is one of the processes in SCRATCH. */
int cgpu_nvml_is_own(const struct cgpu_nvml_scratch *scratch, uint32_t pid);

/*
 * Follow NVML's size protocol: *COUNT is the caller's room, and gets the number of entries.
 * INSUFFICIENT_SIZE: there is not enough room. INVALID_ARGUMENT: there is, but OUT is NULL.
 */
enum nvml_return cgpu_nvml_fit(uint32_t *count, const void *out, size_t found);

/* ---- processes.c ---- */

/* A list function. The layout of entries differs from version to version. */
typedef enum nvml_return cgpu_nvml_list_function(struct nvml_device *, uint32_t *, void *);

/*
 * The status of the real list. It is called without room for entries, because only the status
 * counts.
 */
enum nvml_return cgpu_nvml_list_status(cgpu_nvml_list_function *real, struct nvml_device *device,
                                       const uint32_t *count);

/*
 * The body of every list of compute processes. STATUS is the real function's answer; if it shows
 * that there is no list, it is returned.
 */
enum nvml_return cgpu_nvml_list(enum nvml_return status, struct nvml_device *device,
                                uint32_t *count, void *out, size_t stride);

/* The body of the lists that are empty in a container. STATUS as above. */
enum nvml_return cgpu_nvml_list_none(enum nvml_return status, uint32_t *count);

/* ---- private_table.c ---- */

/* Make the container's copy of the table. Called once, when the library is loaded. */
void cgpu_nvml_export_table_setup(void);

#endif
