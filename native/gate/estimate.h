/*
 * How long kernels take, learnt from batches that have ended.
 *
 * Batches whose ends one check sees are a *lesson*. Batches of one kernel that end one after the
 * other without a gap are a *chain*.
 */
#ifndef CGPU_ESTIMATE_H
#define CGPU_ESTIMATE_H

#include "gate/pace.h"

/*
 * Take the new LESSON. A kernel without an estimate gets one at once, because the next launch asks
 * for it. Everything else is learnt when the check is over.
 */
void cgpu_estimate_take(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

/* The check is over: learn from what it found passed. */
void cgpu_estimate_finish(struct cgpu_pace *pace);

/* Add LESSON to the chain. If it does not belong there, end the chain and begin another. */
void cgpu_estimate_chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

#endif
