/*
 * What a kernel is taken for that was never measured.
 *
 * To measure one it is launched alone, which leaves the GPU idle for a moment. Programs with
 * thousands of different kernels would do hardly anything else. So once enough of a process's
 * kernels were measured that did not differ much, the next ones are taken for as long as these
 * were, a few at a time; one that takes far longer ends that.
 */
#ifndef CGPU_GUESS_H
#define CGPU_GUESS_H

#include <stdbool.h>
#include <stdint.h>

struct cgpu_guess {
    uint64_t ns;     /* what one takes, rather more than on average */
    uint32_t fitted; /* so many in a row did not take much longer */
    uint32_t turn;   /* of those that are measured nevertheless */
};

/* What the next launch of an unknown kernel is taken for; 0: measure it alone. */
uint64_t cgpu_guess_next(struct cgpu_guess *guess);

/* COUNT launches of unknown kernels took NS each. */
void cgpu_guess_learn(struct cgpu_guess *guess, uint64_t ns, uint64_t count);

#endif
