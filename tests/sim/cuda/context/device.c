/* Devices: what they are called and what they can do. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "sim.h"

/* The attributes that are the same for every simulated GPU: {CUdevice_attribute, value}. */
static const struct {
    int attribute, value;
} constants[] = {
    {1, 1024},     {2, 1024},    {3, 1024},    {4, 64},         {5, 2147483647},  {6, 65535},
    {7, 65535},    {8, 49152},   {9, 65536},   {10, 32},        {11, 2147483647}, {12, 65536},
    {14, 512},     {15, 1},      {17, 0},      {18, 0},         {19, 1},          {20, 0},
    {21, 131072},  {22, 131072}, {23, 65536},  {24, 16384},     {25, 16384},      {26, 16384},
    {27, 32768},   {28, 32768},  {29, 2048},   {31, 1},         {32, 0},          {35, 0},
    {40, 3},       {41, 1},      {42, 32768},  {43, 2048},      {45, 32768},      {46, 32768},
    {47, 8192},    {48, 8192},   {49, 32768},  {51, 32},        {52, 32768},      {53, 32768},
    {54, 2046},    {55, 32768},  {56, 131072}, {57, 65536},     {58, 16384},      {59, 16384},
    {60, 16384},   {61, 32768},  {62, 2048},   {63, 32768},     {64, 32768},      {65, 2048},
    {66, 32768},   {67, 32768},  {68, 2046},   {69, 268435456}, {70, 131072},     {71, 65000},
    {72, 2097120}, {73, 32768},  {74, 32768},  {77, 32768},     {78, 1},          {79, 1},
    {80, 1},       {81, 65536},  {82, 65536},  {83, 1},         {84, 0},          {86, 0},
    {87, 32},      {88, 0},      {89, 1},      {90, 1},         {91, 1},          {94, 0},
    {95, 1},       {96, 1},      {97, 65536},  {98, 0},         {99, 1},          {100, 0},
    {101, 0},      {102, 1},     {103, 1},     {104, 0},        {105, 0},         {106, 16},
    {107, 0},      {108, 0},     {109, 0},     {110, 0},        {111, 0},         {112, 0},
    {113, 0},      {114, 0},     {115, 1},     {116, 0},        {117, 0},         {118, 0},
    {119, 1},      {120, 0},     {121, 1},     {123, 0},        {124, 0},         {125, 0},
    {126, 1},      {127, 0},     {128, 0},     {129, 0},        {130, 0},         {131, -1},
    {132, 0},      {133, 0},     {134, 0},
};

/* What differs between GPUs; negative: not among these. */
static int
particular(const struct sim_device *device, int attribute)
{
    const struct cgpu_machine_gpu *facts = device->facts;
    switch (attribute) {
    case 92:  /* values written by streams: 32 bits, */
    case 93:  /* 64 bits, */
    case 122: /* 64 bits of the newer functions; waiting for values is not simulated */
        return sim_marker_allowed();
    case 13:
        return (int)facts->sm_clock_khz;
    case 16:
        return (int)facts->sm_count;
    case 33:
        return (int)facts->pci_bus;
    case 34:
        return (int)facts->pci_device;
    case 36:
        return (int)facts->memory_clock_khz;
    case 37:
        return (int)facts->memory_bus_bits;
    case 38:
        return (int)facts->l2_bytes;
    case 39:
        return (int)facts->threads_per_sm;
    case 50:
        return (int)facts->pci_domain;
    case 75:
        return (int)facts->capability_major;
    case 76:
        return (int)facts->capability_minor;
    case 85:
        return (int)device->ordinal;
    default:
        return -1;
    }
}

SIM_API(cuDeviceGetAttribute, (int *value, int attribute, int ordinal), (value, attribute, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int own = particular(device, attribute);
    if (own >= 0) {
        *value = own;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (constants[i].attribute == attribute) {
            *value = constants[i].value;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuDeviceGet, (int *out, int ordinal), (out, ordinal))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = ordinal;
    return sim_device(ordinal) == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SIM_API(cuDeviceGetCount, (int *out), (out))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (int)sim_device_count();
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetName, (char *out, int length, int ordinal), (out, length, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(out, (size_t)length, "%s", device->facts->name);
    return CUDA_SUCCESS;
}

static int
uuid_of(uint8_t *out, int ordinal)
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, device->facts->uuid, 16);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetUuid, (uint8_t *out, int ordinal), (out, ordinal))
{
    return uuid_of(out, ordinal);
}

SIM_API(cuDeviceGetUuid_v2, (uint8_t *out, int ordinal), (out, ordinal))
{
    return uuid_of(out, ordinal);
}

/* What the firmware keeps is not CUDA's. */
static int
total_of(uint64_t *out, int ordinal)
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = device->facts->total_bytes - device->facts->reserved_bytes;
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceTotalMem_v2, (size_t *out, int ordinal), (out, ordinal))
{
    uint64_t total = 0;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : total_of(&total, ordinal);
    if (result == CUDA_SUCCESS) {
        *out = total;
    }
    return result;
}

SIM_API(cuDeviceTotalMem, (uint32_t *out, int ordinal), (out, ordinal))
{
    uint64_t total = 0;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : total_of(&total, ordinal);
    if (result == CUDA_SUCCESS) {
        *out = total > UINT32_MAX ? UINT32_MAX : (uint32_t)total;
    }
    return result;
}

SIM_API(cuDeviceComputeCapability, (int *major, int *minor, int ordinal), (major, minor, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (major == NULL || minor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = (int)device->facts->capability_major;
    *minor = (int)device->facts->capability_minor;
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetProperties, (int *out, int ordinal), (out, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Threads per block, block and grid sizes, shared, constant, warp, pitch, registers, clock,
     * texture. */
    const int values[] = {1024,
                          1024,
                          1024,
                          64,
                          2147483647,
                          65535,
                          65535,
                          49152,
                          65536,
                          32,
                          2147483647,
                          65536,
                          (int)device->facts->sm_clock_khz,
                          512};
    memcpy(out, values, sizeof values);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetPCIBusId, (char *out, int length, int ordinal), (out, length, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || length < 13) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(out, (size_t)length, "%04X:%02X:%02X.0", device->facts->pci_domain,
             device->facts->pci_bus, device->facts->pci_device);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetByPCIBusId, (int *out, const char *id), (out, id))
{
    unsigned domain = 0, bus, slot;
    if (out == NULL || id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(id, "%x:%x", &bus, &slot) != 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (uint32_t i = 0; i < sim_device_count(); i++) {
        const struct cgpu_machine_gpu *facts = sim_device((int)i)->facts;
        if (facts->pci_domain == domain && facts->pci_bus == bus && facts->pci_device == slot) {
            *out = (int)i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

SIM_API(cuDeviceCanAccessPeer, (int *out, int ordinal, int peer), (out, ordinal, peer))
{
    if (sim_device(ordinal) == NULL || sim_device(peer) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = ordinal != peer;
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetP2PAttribute, (int *out, int attribute, int ordinal, int peer),
        (out, attribute, ordinal, peer))
{
    if (sim_device(ordinal) == NULL || sim_device(peer) == NULL || ordinal == peer) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || attribute < 1 || attribute > 4) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = attribute == 2; /* access, but neither atomics nor arrays */
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetExecAffinitySupport, (int *out, int type, int ordinal), (out, type, ordinal))
{
    if (sim_device(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || type != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = 0;
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetTexture1DLinearMaxWidth,
        (size_t *out, int format, unsigned channels, int ordinal), (out, format, channels, ordinal))
{
    (void)format;
    if (sim_device(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || channels == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = 268435456;
    return CUDA_SUCCESS;
}
