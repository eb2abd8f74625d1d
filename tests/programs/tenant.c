/*
 * A process that uses a simulated GPU directly, without libcuda: tenant GPU MIB KERNEL_MS. It holds
 * memory, keeps the GPU computing if KERNEL_MS is not 0, says "ready", and stays until its standard
 * input ends. The first kernel is long enough to be seen in the utilisation, which is kept in steps
 * of 100 ms.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine.h"

enum { FIRST_KERNEL_NS = 250000000 };

int
main(int argc, char **argv)
{
    struct cgpu_machine *machine;
    struct pollfd input = {.fd = 0, .events = POLLIN | POLLHUP};
    uint32_t gpu = argc == 4 ? (uint32_t)atoi(argv[1]) : 0;
    uint64_t bytes = argc == 4 ? strtoull(argv[2], NULL, 10) << 20 : 0;
    uint64_t kernel_ns = argc == 4 ? strtoull(argv[3], NULL, 10) * 1000000 : 0;
    if (cgpu_machine_open(&machine) != 0 || cgpu_machine_attach(machine) != 0 ||
        cgpu_machine_take(machine, gpu, bytes) != 0) {
        return 1;
    }
    cgpu_machine_count_context(machine, gpu, 1);
    if (kernel_ns > 0) {
        cgpu_machine_wait(machine, gpu, cgpu_machine_submit(machine, gpu, FIRST_KERNEL_NS, 0));
    }
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, kernel_ns > 0 ? 0 : -1) == 0) {
        cgpu_machine_wait(machine, gpu, cgpu_machine_submit(machine, gpu, kernel_ns, 0));
    }
    return 0;
}
