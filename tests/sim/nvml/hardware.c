/* Clocks, temperature, power, error counters: what takes more arguments than a device and a result.
 */
#include "sim.h"

#include <stddef.h>
#include <time.h>

enum {
    CLOCK_MEMORY = 2,
    CLOCK_TYPES = 4,
    IDLE_SM_MHZ = 300,
    IDLE_MEMORY_MHZ = 405,
    IDLE_CELSIUS = 35,
    BUSY_CELSIUS = 58,
};

/* Write VALUE, of the type of *OUT, as the answer of the calling function. */
#define ANSWER(device, out, value)                                                                 \
    do {                                                                                           \
        const struct cgpu_machine_gpu *gpu;                                                        \
        enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);                   \
        if (!result) {                                                                             \
            *(out) = (value);                                                                      \
        }                                                                                          \
        return result;                                                                             \
    } while (0)

static uint32_t
full_clock(const struct cgpu_machine_gpu *gpu, uint32_t type)
{
    return (type == CLOCK_MEMORY ? gpu->memory_clock_khz : gpu->sm_clock_khz) / 1000;
}

static uint32_t
current_clock(struct nvml_device *device, const struct cgpu_machine_gpu *gpu, uint32_t type)
{
    if (sim_is_busy(device)) {
        return full_clock(gpu, type);
    }
    return type == CLOCK_MEMORY ? IDLE_MEMORY_MHZ : IDLE_SM_MHZ;
}

NVML_DEFINE(nvmlDeviceGetClockInfo, struct nvml_device *device, uint32_t type, uint32_t *out)
{
    ANSWER(device, out, current_clock(device, gpu, type));
}

NVML_DEFINE(nvmlDeviceGetMaxClockInfo, struct nvml_device *device, uint32_t type, uint32_t *out)
{
    ANSWER(device, out, full_clock(gpu, type));
}

NVML_DEFINE(nvmlDeviceGetApplicationsClock, struct nvml_device *device, uint32_t type,
            uint32_t *out)
{
    ANSWER(device, out, full_clock(gpu, type));
}

NVML_DEFINE(nvmlDeviceGetDefaultApplicationsClock, struct nvml_device *device, uint32_t type,
            uint32_t *out)
{
    ANSWER(device, out, full_clock(gpu, type));
}

NVML_DEFINE(nvmlDeviceGetClock, struct nvml_device *device, uint32_t type, uint32_t id,
            uint32_t *out)
{
    ANSWER(device, out, id == 0 ? current_clock(device, gpu, type) : full_clock(gpu, type));
}

NVML_DEFINE(nvmlDeviceGetTemperature, struct nvml_device *device, uint32_t sensor, uint32_t *out)
{
    (void)sensor;
    ANSWER(device, out, sim_is_busy(device) ? BUSY_CELSIUS : IDLE_CELSIUS);
}

NVML_DEFINE(nvmlDeviceGetTemperatureThreshold, struct nvml_device *device, uint32_t threshold,
            uint32_t *out)
{
    static const uint32_t celsius[] = {96, 93, 85, 85}; /* shutdown, slowdown, memory, GPU */
    if (threshold >= sizeof celsius / sizeof celsius[0]) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    ANSWER(device, out, celsius[threshold]);
}

NVML_DEFINE(nvmlDeviceGetPowerManagementLimitConstraints, struct nvml_device *device,
            uint32_t *least, uint32_t *most)
{
    if (most != NULL) {
        *most = SIM_POWER_LIMIT_MW;
    }
    ANSWER(device, least, 60000);
}

/* The whole energy is that of the busy time; the machine knows no other. */
NVML_DEFINE(nvmlDeviceGetTotalEnergyConsumption, struct nvml_device *device, uint64_t *millijoules)
{
    ANSWER(device, millijoules,
           cgpu_machine_busy_ns(sim_machine(), device->index) / 1000000 * SIM_POWER_BUSY_MW / 1000);
}

NVML_DEFINE(nvmlDeviceGetTotalEccErrors, struct nvml_device *device, uint32_t error,
            uint32_t counter, uint64_t *out)
{
    (void)error;
    (void)counter;
    ANSWER(device, out, 0);
}

NVML_DEFINE(nvmlDeviceGetMemoryErrorCounter, struct nvml_device *device, uint32_t error,
            uint32_t counter, uint32_t location, uint64_t *out)
{
    (void)error;
    (void)counter;
    (void)location;
    ANSWER(device, out, 0);
}

NVML_DEFINE(nvmlDeviceGetCudaComputeCapability, struct nvml_device *device, int *major, int *minor)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, minor ? major : NULL, &gpu);
    if (!result) {
        *major = (int)gpu->capability_major;
        *minor = (int)gpu->capability_minor;
    }
    return result;
}

enum { AMPERE = 8 };

NVML_DEFINE(nvmlDeviceGetMigMode, struct nvml_device *device, uint32_t *current, uint32_t *pending)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, pending ? current : NULL, &gpu);
    if (result) {
        return result;
    }
    if (gpu->capability_major < AMPERE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = *pending = gpu->mig;
    return NVML_SUCCESS;
}

enum { REASON_IDLE = 1, ALL_REASONS = 0x1ff };

NVML_DEFINE(nvmlDeviceGetSupportedClocksEventReasons, struct nvml_device *device, uint64_t *out)
{
    ANSWER(device, out, ALL_REASONS);
}

NVML_DEFINE(nvmlDeviceGetCurrentClocksEventReasons, struct nvml_device *device, uint64_t *out)
{
    ANSWER(device, out, sim_is_busy(device) ? 0 : REASON_IDLE);
}

NVML_DEFINE(nvmlDeviceGetSupportedClocksThrottleReasons, struct nvml_device *device, uint64_t *out)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, out);
}

NVML_DEFINE(nvmlDeviceGetCurrentClocksThrottleReasons, struct nvml_device *device, uint64_t *out)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, out);
}

NVML_DEFINE(nvmlDeviceGetInforomVersion, struct nvml_device *device, uint32_t object, char *out,
            uint32_t size)
{
    static const char *const versions[] = {"1.1", "5.0", "1.0"}; /* OEM, ECC, power */
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    if (object >= sizeof versions / sizeof versions[0]) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return sim_copy_text(out, size, versions[object]);
}

/* Every single field is answered, with "not supported". */
NVML_DEFINE(nvmlDeviceGetFieldValues, struct nvml_device *device, int count,
            struct nvml_field_value *values)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, values, &gpu);
    for (int i = 0; !result && i < count; i++) {
        values[i].result = NVML_ERROR_NOT_SUPPORTED;
    }
    return result;
}

NVML_DEFINE(nvmlDeviceGetPcieThroughput, struct nvml_device *device, uint32_t counter,
            uint32_t *out)
{
    (void)counter;
    ANSWER(device, out, 0);
}

#define CODEC(name)                                                                                \
    NVML_DEFINE(name, struct nvml_device *device, uint32_t *out, uint32_t *period_us)              \
    {                                                                                              \
        if (period_us != NULL) {                                                                   \
            *period_us = 167000;                                                                   \
        }                                                                                          \
        ANSWER(device, out, 0);                                                                    \
    }
CODEC(nvmlDeviceGetEncoderUtilization)
CODEC(nvmlDeviceGetDecoderUtilization)
CODEC(nvmlDeviceGetJpgUtilization)
CODEC(nvmlDeviceGetOfaUtilization)

NVML_DEFINE(nvmlDeviceGetEncoderStats, struct nvml_device *device, uint32_t *sessions,
            uint32_t *rate, uint32_t *latency_us)
{
    *rate = 0;
    *latency_us = 0;
    ANSWER(device, sessions, 0);
}

struct frame_capture_stats {
    uint32_t sessions, rate, latency_us;
};

NVML_DEFINE(nvmlDeviceGetFBCStats, struct nvml_device *device, struct frame_capture_stats *out)
{
    ANSWER(device, out, (struct frame_capture_stats){0});
}

NVML_DEFINE(nvmlDeviceGetEncoderSessions, struct nvml_device *device, uint32_t *count, void *out)
{
    (void)out;
    ANSWER(device, count, 0);
}

NVML_DEFINE(nvmlDeviceGetFBCSessions, struct nvml_device *device, uint32_t *count, void *out)
{
    (void)out;
    ANSWER(device, count, 0);
}

NVML_DEFINE(nvmlDeviceGetP2PStatus, struct nvml_device *device, struct nvml_device *peer,
            uint32_t capability, uint32_t *out)
{
    (void)peer;
    (void)capability;
    ANSWER(device, out, 1 /* chipset not supported */);
}

NVML_DEFINE(nvmlDeviceOnSameBoard, struct nvml_device *device, struct nvml_device *peer, int *out)
{
    ANSWER(device, out, device == peer);
}

NVML_DEFINE(nvmlDeviceGetAPIRestriction, struct nvml_device *device, uint32_t api, uint32_t *out)
{
    (void)api;
    ANSWER(device, out, 1);
}
