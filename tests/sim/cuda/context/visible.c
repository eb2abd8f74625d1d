/* CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, and the table of devices. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static struct sim_device devices[CGPU_MACHINE_MAX_GPUS];
static uint32_t device_count;
static uint32_t numbered[CGPU_MACHINE_MAX_GPUS]; /* what numbers mean: indices of the machine */

static uint64_t
speed(uint32_t index)
{
    const struct cgpu_machine_gpu *gpu = cgpu_machine_gpu(sim_machine(), index);
    return (uint64_t)gpu->sm_count * gpu->sm_clock_khz;
}

/* By PCI address, or the fastest first, equally fast ones by PCI address. */
static void
number_devices(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    int by_bus = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
    for (uint32_t i = 0; i < cgpu_machine_gpu_count(sim_machine()); i++) {
        uint32_t at = i;
        for (; !by_bus && at > 0 && speed(numbered[at - 1]) < speed(i); at--) {
            numbered[at] = numbered[at - 1];
        }
        numbered[at] = i;
    }
}

static void
format_uuid(const uint8_t *uuid, char *out, size_t size)
{
    int at = snprintf(out, size, "GPU-");
    for (int i = 0; i < 16; i++) {
        int dash = i == 4 || i == 6 || i == 8 || i == 10;
        at += snprintf(out + at, size - (size_t)at, dash ? "-%02x" : "%02x", uuid[i]);
    }
}

static int
is_lost(uint32_t index)
{
    int has_handle;
    return cgpu_machine_loss(sim_machine(), index, &has_handle) != 0;
}

/* Index of the only GPU whose UUID starts with the item, or -1. */
static int
match_uuid(const char *item)
{
    int found = -1;
    for (uint32_t i = 0; i < cgpu_machine_gpu_count(sim_machine()); i++) {
        char uuid[48];
        format_uuid(cgpu_machine_gpu(sim_machine(), i)->uuid, uuid, sizeof uuid);
        if (strncasecmp(uuid, item, strlen(item)) == 0) {
            if (found >= 0) {
                return -1;
            }
            found = (int)i;
        }
    }
    return found;
}

static int
match(const char *item)
{
    if (strncasecmp(item, "GPU-", 4) == 0) {
        return match_uuid(item);
    }
    if (!isdigit((unsigned char)item[0]) || strlen(item) > 4) {
        return -1;
    }
    char *end;
    long index = strtol(item, &end, 10);
    return *end == '\0' && index < (long)cgpu_machine_gpu_count(sim_machine())
               ? (int)numbered[index]
               : -1;
}

/* Devices up to the first item that names none; a device named twice leaves no devices at all. */
static void
parse(const char *text, uint32_t *order, uint32_t *count)
{
    char *copy = strdup(text), *rest = copy, *item;
    *count = 0;
    while (copy != NULL && (item = strsep(&rest, ",")) != NULL && *count < CGPU_MACHINE_MAX_GPUS) {
        item += strspn(item, " \t");
        item[strcspn(item, " \t")] = '\0';
        int index = match(item);
        if (index < 0 || is_lost((uint32_t)index)) {
            break;
        }
        for (uint32_t i = 0; i < *count; i++) {
            if (order[i] == (uint32_t)index) {
                free(copy);
                *count = 0;
                return;
            }
        }
        order[(*count)++] = (uint32_t)index;
    }
    free(copy);
}

int
sim_devices_find(void)
{
    uint32_t order[CGPU_MACHINE_MAX_GPUS];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    number_devices();
    device_count = 0;
    for (uint32_t i = 0; i < cgpu_machine_gpu_count(sim_machine()); i++) {
        if (!is_lost(numbered[i])) {
            order[device_count++] = numbered[i];
        }
    }
    if (visible != NULL) {
        parse(visible, order, &device_count);
    }
    for (uint32_t i = 0; i < device_count; i++) {
        devices[i].ordinal = i;
        devices[i].machine_index = order[i];
        devices[i].facts = cgpu_machine_gpu(sim_machine(), order[i]);
    }
    return device_count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

struct sim_device *
sim_device(int ordinal)
{
    return ordinal >= 0 && (uint32_t)ordinal < device_count ? &devices[ordinal] : NULL;
}

uint32_t
sim_device_count(void)
{
    return device_count;
}

int
sim_take(struct sim_device *device, uint64_t bytes)
{
    int status = cgpu_machine_take(sim_machine(), device->machine_index, bytes);
    return status == CGPU_MACHINE_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void
sim_give(struct sim_device *device, uint64_t bytes)
{
    if (bytes != 0) {
        cgpu_machine_give(sim_machine(), device->machine_index, bytes);
    }
}
