"""The files that the ablation changes."""

from __future__ import annotations

STATE, PACE, ESTIMATE = (
    "native/arbiter/arbiter_state.h",
    "native/gate/pace.c",
    "native/gate/estimate.c",
)
TIMES, CHARGE = "native/gate/gate_times.h", "native/arbiter/charge.c"
FLIGHT, SYNC = "native/gate/flight.c", "native/gate/sync.c"
TURN = "native/arbiter/turn.c"
TURN_RULES = "native/arbiter/turn_rules.c"
ENTER, DRAIN = "native/gate/enter.c", "native/gate/drain.c"
GATE, THREAD = "native/gate/state.h", "tests/model/thread.c"
END, BEGIN = "native/arbiter/group/end.c", "native/arbiter/group/begin.c"
BUCKET, STAY = "native/arbiter/bucket.c", "native/arbiter/stall.c"
UNUSED, ARBITER = "native/arbiter/idle_credit.c", "native/arbiter/arbiter.c"
USED = "native/arbiter/used.c"
STAGE = "native/arbiter/transition.c"
BUDGET = "native/arbiter/budget.h"
TOGETHER = "native/arbiter/soft.c"
BESIDE = "native/arbiter/overlap.c"
COMPANY = "native/arbiter/corun.c"
LINGER = "native/arbiter/anticipation.c"
