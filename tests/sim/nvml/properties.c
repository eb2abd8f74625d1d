/* The functions that functions.def defines completely. */
#include "sim.h"

uint32_t
sim_architecture(const struct cgpu_machine_gpu *gpu)
{
    static const struct {
        uint32_t capability, architecture;
    } known[] = {{90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}, {60, 4}};
    uint32_t capability = gpu->capability_major * 10 + gpu->capability_minor;
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (capability >= known[i].capability) {
            return known[i].architecture;
        }
    }
    return 0xffffffff;
}

#define NVML_FUNCTION(name)

#define NVML_UINT(name, value)                                                                     \
    enum nvml_return name(struct nvml_device *device, uint32_t *out)                               \
    {                                                                                              \
        const struct cgpu_machine_gpu *gpu;                                                        \
        enum nvml_return result = sim_enter_device(#name, device, out, &gpu);                      \
        if (!result) {                                                                             \
            *out = (uint32_t)(value);                                                              \
        }                                                                                          \
        return result;                                                                             \
    }

#define NVML_UINT_PAIR(name, first, second)                                                        \
    enum nvml_return name(struct nvml_device *device, uint32_t *one, uint32_t *two)                \
    {                                                                                              \
        const struct cgpu_machine_gpu *gpu;                                                        \
        enum nvml_return result = sim_enter_device(#name, device, one, &gpu);                      \
        if (!result) {                                                                             \
            *one = first;                                                                          \
            *two = second;                                                                         \
        }                                                                                          \
        return result;                                                                             \
    }

#define NVML_TEXT(name, value)                                                                     \
    enum nvml_return name(struct nvml_device *device, char *out, uint32_t size)                    \
    {                                                                                              \
        const struct cgpu_machine_gpu *gpu;                                                        \
        enum nvml_return result = sim_enter_device(#name, device, out, &gpu);                      \
        return result ? result : sim_copy_text(out, size, value);                                  \
    }

#define NVML_UNSUPPORTED(name)                                                                     \
    enum nvml_return name(void)                                                                    \
    {                                                                                              \
        enum nvml_return result = sim_enter(#name);                                                \
        return result ? result : NVML_ERROR_NOT_SUPPORTED;                                         \
    }

#include "functions.def"
