/*
 * Containers and their processes for the tests of arbitration: a process does what the proxy does,
 * with a sleep for a kernel.
 */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ledger/ledger_file.h"
#include "limits.h"

enum { GUEST_PATH = 256 };

/* A container's files, and what its host sees of them. */
struct guest {
    char limits[GUEST_PATH];
    char ledger[GUEST_PATH];
    struct cgpu_limits *page;
    struct cgpu_ledger_file *file;
    struct guest_scene *scene;
    uint32_t kernel_us;
    uint32_t number;
};

/* Shared by all processes of a test. */
struct guest_scene {
    uint32_t overlaps;    /* times that two containers had a kernel in flight */
    uint32_t entered[8];  /* kernels in flight, by container */
    uint32_t launches[8]; /* that have ended */
};

struct guest_scene *guest_scene(void);

/* A container with fresh files; NUMBER < 8 ends the ledger's name. */
struct guest *guest_make(struct guest_scene *scene, uint32_t number, uint32_t kernel_us);

/* A process of it that launches without end. */
pid_t guest_run(struct guest *guest);

/* Wait up to 10 s until COUNT more kernels of it have been launched; false: they were not. */
bool guest_advances(const struct guest *guest, uint32_t count);

uint32_t guest_gate(const struct guest *guest);

#endif
