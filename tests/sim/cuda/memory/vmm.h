/* What the two files of virtual memory management share. */
#ifndef CGPU_SIM_VMM_H
#define CGPU_SIM_VMM_H

#include "sim.h"

enum {
    SIM_LOCATION_DEVICE = 1,
    SIM_LOCATION_HOST,
    SIM_LOCATION_HOST_NUMA,
    SIM_LOCATION_HOST_NUMA_CURRENT,
    SIM_LOCATION_LOCALITY_DOMAIN = 6,
};

/* The device at a location; NULL: it is not on one. Each has one locality domain. */
struct sim_device *sim_device_at(uint32_t location_type, uint32_t location_id);

void sim_physical_release(struct sim_physical *physical); /* frees it if nothing refers to it */

#endif
