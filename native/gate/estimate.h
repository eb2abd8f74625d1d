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
 * Take the new LESSON. New kernels are learnt at once, because the next launch asks for them; the
 * rest when the check is over.
 */
void cgpu_estimate_take(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

/* Learn from what was seen to pass in the check, which is over. */
void cgpu_estimate_finish(struct cgpu_pace *pace);

/* Continue the chain by LESSON, or end it. */
void cgpu_estimate_chain(struct cgpu_pace *pace, const struct cgpu_pace_lesson *lesson);

#endif
