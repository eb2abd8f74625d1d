/*
 * The estimate for kernels that were never measured.
 *
 * To be measured, a kernel is launched alone, which leaves the GPU idle for a moment. A program
 * with thousands of different kernels would do hardly anything else. So once enough kernels of a
 * process were measured and did not differ much, each new one is assumed to take as long, a few at
 * a time. This ends if one takes far longer.
 */
#ifndef CGPU_GUESS_H
#define CGPU_GUESS_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_guess {
    uint64_t ns;     /* what one takes, rather more than on average */
    uint32_t fitted; /* how many in a row did not take much longer */
    uint32_t turn;   /* of those that are measured nevertheless */
};

/* The assumed time of the next launch of an unknown kernel; 0: measure it alone. */
uint64_t cgpu_guess_next(struct cgpu_guess *guess);

/* Learn that COUNT launches of unknown kernels took NS each. */
void cgpu_guess_learn(struct cgpu_guess *guess, uint64_t ns, uint64_t count);

#endif
