/*
 * The simulated libnvidia-ml.so.1: NVML over the simulated machine. Each file holds a subject; what
 * is exported is listed in functions.def and nowhere else. Figures that the machine does not model
 * (power, clocks, temperature) are those of a Tesla T4 at rest or at work.
 */
#ifndef CGPU_SIM_NVML_H
#define CGPU_SIM_NVML_H

#include <stddef.h>
#include <stdint.h>

#include "../../../shim/nvml/nvml.h"
#include "machine.h"

#define SIM_EXPORT __attribute__((visibility("default")))

enum {
    SIM_POWER_IDLE_MW = 10000,
    SIM_POWER_BUSY_MW = 62000,
    SIM_POWER_LIMIT_MW = 70000,
    SIM_NAME_SIZE = 96,
};

/* A handle: its address identifies the GPU within this process. */
struct nvml_device {
    uint32_t index;
};

struct nvml_pci_v2 {
    char bus_id[16];
    uint32_t domain, bus, device, device_id, subsystem_id, reserved[4];
};

struct nvml_pci_v3 {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct nvml_pci_ext {
    uint32_t version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

/* Declare and begin an exported function that is written out. */
#define NVML_DEFINE(name, ...)                                                                     \
    SIM_EXPORT enum nvml_return name(__VA_ARGS__);                                                 \
    enum nvml_return name(__VA_ARGS__)

#define NVML_FUNCTION(name)
#define NVML_UINT(name, value)                                                                     \
    SIM_EXPORT enum nvml_return name(struct nvml_device *device, uint32_t *out);
#define NVML_UINT_PAIR(name, first, second)                                                        \
    SIM_EXPORT enum nvml_return name(struct nvml_device *device, uint32_t *one, uint32_t *two);
#define NVML_TEXT(name, value)                                                                     \
    SIM_EXPORT enum nvml_return name(struct nvml_device *device, char *out, uint32_t size);
#define NVML_UNSUPPORTED(name) SIM_EXPORT enum nvml_return name(void);
#include "functions.def"
#undef NVML_FUNCTION
#undef NVML_UINT
#undef NVML_UINT_PAIR
#undef NVML_TEXT
#undef NVML_UNSUPPORTED

/* The machine while the library is initialised; NULL otherwise. */
struct cgpu_machine *sim_machine(void);

/* What every call begins with: is the library initialised, and is a fault injected into CALL? */
enum nvml_return sim_enter(const char *call);

/* As sim_enter, for a call on DEVICE that writes to OUT; *GPU is what the handle stands for. */
enum nvml_return sim_enter_device(const char *call, struct nvml_device *device, const void *out,
                                  const struct cgpu_machine_gpu **gpu);

/* The handle of the GPU at INDEX; NULL if there is none. */
struct nvml_device *sim_device(uint32_t index);

/* Fill OUT, entries STRIDE bytes apart, with the GPU's compute processes, by NVML's size protocol.
 */
enum nvml_return sim_list_processes(const char *call, struct nvml_device *device, uint32_t *count,
                                    void *out, size_t stride);

/* How a GPU is addressed on PCI; also of the one at the other end of an NVLink. */
SIM_EXPORT enum nvml_return nvmlDeviceGetPciInfo_v3(struct nvml_device *device,
                                                    struct nvml_pci_v3 *out);

enum nvml_return sim_copy_text(char *out, uint32_t size, const char *text);
void sim_format_uuid(const struct cgpu_machine_gpu *gpu, char out[SIM_NAME_SIZE]);

uint32_t sim_architecture(const struct cgpu_machine_gpu *gpu);
int sim_is_busy(const struct nvml_device *device);

#endif
