/*
 * Threads that ask the NVML proxy, linked in, about more devices than it remembers.
 * The first two devices are in the limits: GPU N has a cap of N + 1 MiB.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 20, DEVICES = 80, LIMITED = 2, NOT_SUPPORTED = 3 };

int nvmlDeviceGetMemoryInfo(void *device, uint64_t *out);
int nvmlDeviceGetAccountingPids(void *device, uint32_t *count, uint32_t *pids);

static int
check(uintptr_t device)
{
    uint64_t memory[3];
    uint32_t pids[8], count = 8;
    int status = nvmlDeviceGetMemoryInfo((void *)device, memory);
    int listed = nvmlDeviceGetAccountingPids((void *)device, &count, pids);
    if (device > LIMITED) {
        return status == NOT_SUPPORTED && listed == NOT_SUPPORTED;
    }
    return status == 0 && memory[0] == (uint64_t)device << 20 && listed == 0 && count == 0;
}

static void *
work(void *failures)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (uintptr_t device = 1; device <= DEVICES; device++) {
            *(int *)failures += !check(device);
        }
    }
    return NULL;
}

int
main(void)
{
    pthread_t threads[THREADS];
    int failures[THREADS] = {0}, all = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, work, &failures[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        all += failures[i];
    }
    printf("%d failures\n", all);
    return all != 0;
}
