/*
 * How long kernels take: what is learnt from batches that have ended.
 *
 * What was seen to pass at one time is a lesson. Batches of one kernel that end one after the other
 * without a gap are a chain.
 */
#ifndef CGPU_ESTIMATE_H
#define CGPU_ESTIMATE_H

#include "gate/pace.h"

/*
 * LESSON is new. New kernels are learnt at once, because the next launch asks for them; the rest
 * when the check is over.
 */
void cgpu_estimate_take(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

/* The check is over: learn from what was seen to pass in it. */
void cgpu_estimate_finish(struct cgpu_pace *pace);

/* LESSON continues the chain, or ends it. */
void cgpu_estimate_chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

#endif
