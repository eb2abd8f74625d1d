"""What the ablation changes: a list of constants, and one of lines that switch something off."""

from __future__ import annotations

import re
from typing import NamedTuple


class Variant(NamedTuple):
    """One change of one file."""

    name: str
    path: str
    old: re.Pattern[str]
    new: str

    @property
    def thing(self) -> str:
        """What is changed."""
        return self.name.rpartition(" ")[0]

    def changed(self, text: str) -> str:
        """``text`` with the change; ValueError if it does not fit exactly once."""
        changed, count = self.old.subn(self.new, text)
        if count != 1:
            raise ValueError(f"{self.name}: found {count} times in {self.path}")
        return changed


STATE, PACE, ROOM = (
    "native/arbiter/arbiter_state.h",
    "native/gate/pace.c",
    "native/gate/pace_room.c",
)
TIMES, CHARGE = "native/gate/gate_times.h", "native/arbiter/charge.c"
FLIGHT, TURN = "native/gate/flight.c", "native/arbiter/turn.c"
END, BEGIN = "native/arbiter/group/end.c", "native/arbiter/group/begin.c"
BUCKET, LAG = "native/arbiter/bucket.c", "native/arbiter/lag.c"
REVIEW, STAY = "native/arbiter/review.c", "native/arbiter/stay.c"
UNUSED, ARBITER = "native/arbiter/unused.c", "native/arbiter/arbiter.c"
BUDGET = "native/arbiter/budget.h"
TOGETHER = "native/arbiter/together.c"
NEVER = "(UINT64_C(1) << 50)"
# File, constant, the value that switches it off (None: it has none).
CONSTANTS = [
    (PACE, "FIRST_GUESS_NS", "0"),
    (PACE, "SAME_LOOK_NS", "0"),
    (PACE, "LEAN_NS", "0"),
    (PACE, "USUAL_LAG_NS", "0"),
    (PACE, "SOON_NS", NEVER),
    (PACE, "CHAIN_NS", None),
    (PACE, "SHORT_CHAIN_NS", NEVER),
    (PACE, "FALL", "1"),
    (PACE, "RISE", "1"),
    (PACE, "LAG_RISE", "1"),
    (PACE, "LAG_PART", "1"),
    (PACE, "LEAN_PART", "1"),
    (ROOM, "SOONEST_NS", "1"),
    (ROOM, "LATEST_NS", NEVER),
    (ROOM, "SLOWEST_NS", NEVER),
    (ROOM, "WATCH_NS", "0"),
    (ROOM, "LATE_PART", "1"),
    (ROOM, "DRAIN_PART", "1"),
    (TIMES, "CGPU_PACE_BATCH_NS", None),
    (TIMES, "CGPU_PACE_FLIGHT_NS", None),
    (TIMES, "CGPU_PACE_AHEAD_NS", "CGPU_PACE_FLIGHT_NS"),
    (TIMES, "CGPU_PACE_LAG_NS", NEVER),
    (TIMES, "CGPU_PACE_LONE_NS", NEVER),
    (TIMES, "CGPU_PACE_EDGES_NS", "0"),
    (TIMES, "CGPU_PACE_IDLE_NS", None),
    (TIMES, "CGPU_FLIGHT_KNOWN_NS", "0"),
    (FLIGHT, "KNOWN_PART", "1000000000"),
    (TIMES, "CGPU_APART_STAYS_NS", NEVER),
    (TIMES, "CGPU_DRAIN_APART_NS", None),
    (TIMES, "CGPU_DRAIN_WATCH_NS", None),
    (TIMES, "CGPU_DRAIN_WATCH_MOST_NS", NEVER),
    (STATE, "CGPU_TURNS_NS", None),
    (STATE, "CGPU_MORE_NS", "0"),
    (STATE, "CGPU_MOST_NS", NEVER),
    (STATE, "CGPU_TURN_NS", "0"),
    (STATE, "CGPU_TURNS_LAGS", "0"),
    (STATE, "CGPU_LAG_NS", NEVER),
    (STATE, "CGPU_QUIET_TURNS", "1000000000"),
    (STATE, "CGPU_START_NS", "0"),
    (STATE, "CGPU_SPARE_PART", None),
    (STATE, "CGPU_SPARE_NS", NEVER),
    (STATE, "CGPU_FLIGHT_NS", "0"),
    (STATE, "CGPU_CYCLE_NS", None),
    (STATE, "CGPU_RUN_NS", "0"),
    (STATE, "CGPU_RUN_LAGS", "0"),
    (STATE, "CGPU_DEPTH_NS", None),
    (STATE, "CGPU_DEBT_NS", NEVER),
    (STATE, "CGPU_OWED_NS", "0"),
    (STATE, "CGPU_EARLY_NS", "0"),
    (STATE, "CGPU_ANSWER_NS", "0"),
    (STATE, "CGPU_SILENCE_NS", NEVER),
    (STATE, "CGPU_OVERLAP_NS", "CGPU_SILENCE_NS"),
    (STATE, "CGPU_DEATH_NS", NEVER),
    (STATE, "CGPU_LONGEST_NS", None),
    (STATE, "CGPU_STOPPED_NS", NEVER),
    (STATE, "CGPU_ABSENT_NS", "CGPU_ENTRY_NS"),
    (STATE, "CGPU_ABSENCES", "0"),
    (STATE, "CGPU_ENTRY_NS", "CGPU_ABSENT_NS"),
    (STATE, "CGPU_RECENT_NS", "0"),
    (STATE, "CGPU_ALONE_NS", NEVER),
    (CHARGE, "START_PART", "1"),
    (TOGETHER, "AHEAD_NS", None),
    (TOGETHER, "LATELY_NS", None),
    (TOGETHER, "LOOK_NS", None),
    (END, "STAY_NS", "0"),
    (END, "OVERDUE_NS", None),
    (END, "GO_ON_NS", None),
    (END, "GO_ON_TIMES", "0"),
    (BEGIN, "KEEP_FREE_NS", "0"),
    ("native/arbiter/group/parts.h", "CGPU_LEAVE_NS", "0"),
    (BUDGET, "CGPU_BUDGET_LOOK_NS", None),
    (BUDGET, "CGPU_BUDGET_AT_ONCE_NS", None),
    (BUDGET, "CGPU_BUDGET_REST_NS", "0"),
]
# What is switched off, and the one place where that is done: file, text, text in its place.
SWITCHES = [
    ("estimates: fall", PACE, "sample < ns && !lesson->cut", "false"),
    ("estimates: rise", PACE, "if (least > ns) {", "if (false) {"),
    (
        "estimates: a new one at once",
        PACE,
        "lesson->key != 0 && cgpu_pace_estimate(pace, lesson->key) == 0",
        "false",
    ),
    ("estimates: less_edges", PACE, "lesson->exact ? least : less_edges(least)", "least"),
    ("estimates: less_lag", PACE, "lesson->exact ? sample : less_lag(pace, sample)", "sample"),
    ("estimates: rise by 16 times at most", PACE, "lesser(sample, 16 * ns)", "sample"),
    ("estimates: cut spans lower none", PACE, "sample < ns && !lesson->cut", "sample < ns"),
    (
        "estimates: a blurred begin cuts",
        PACE,
        "batch->start_ns < pace->passed_ns && pace->sharp == 0",
        "false",
    ),
    ("estimates: fast and slow fall", PACE, "sample < ns - ns / 4 ? FALL : RISE", "RISE"),
    ("estimates: single launches raise", PACE, " || lesson->launches == 1", ""),
    ("estimates: short ones seen late", PACE, " || least <= CGPU_PACE_BATCH_NS", ""),
    ("estimates: only known ends raise", PACE, "lesson->known && (lesson->exact", "(lesson->exact"),
    ("chain", PACE, "        chain(pace, &lesson);", "        ;"),
    ("chain: what began before", PACE, "batch->begun == 0 || pace->chain_launches > 0", "true"),
    ("chain: long ones raise", PACE, "sample > ns && pace->chain_ns >= CHAIN_NS", "false"),
    ("lag", PACE, "        learn_lag(pace, now);", "        ;"),
    ("end_of", PACE, "known || !batch->certain ? now : end_of(pace, batch, now)", "now"),
    (
        "busy: not more than expected",
        PACE,
        "known ? span : lesser(span, batch->expected_ns)",
        "span",
    ),
    ("room: the lag", ROOM, "flight_ns + pace->lag_ns", "flight_ns"),
    ("room: probes at once", ROOM, "pace->probed_ns != 0", "false"),
    (
        "room: to the running batch's end",
        ROOM,
        "lesser(pace->longest_ns - elapsed, left - flight)",
        "left - flight",
    ),
    (
        "room: unknown kernels more and more rarely",
        ROOM,
        "return elapsed / LATE_PART; /* nobody",
        "return 0; /* nobody",
    ),
    (
        "room: what is overdue soon",
        ROOM,
        "lesser(elapsed - pace->longest_ns, elapsed / LATE_PART)",
        "elapsed / LATE_PART",
    ),
    ("drain: lone kernels", ROOM, "pace->longest_ns >= CGPU_PACE_LONE_NS", "false"),
    ("drain: to the expected end", ROOM, "pace->uncertain == 0 && left > before", "false"),
    ("bucket: forgets at another rate", BUCKET, "if (limited)", "if (false)"),
    ("bucket: promised", BUCKET, "part(CGPU_FLIGHT_NS + bucket->lag_ns,", "part(0,"),
    ("bucket: promised lag", BUCKET, "CGPU_FLIGHT_NS + bucket->lag_ns", "CGPU_FLIGHT_NS"),
    (
        "turn: work in flight",
        TURN,
        "cgpu_since(left, CGPU_FLIGHT_NS + holder->demand.lag_ns)",
        "left",
    ),
    (
        "turn: work in flight, the lag",
        TURN,
        "CGPU_FLIGHT_NS + holder->demand.lag_ns",
        "CGPU_FLIGHT_NS",
    ),
    ("turn: rest of a turn", TURN, "return quantum / 8;", "return 0;"),
    (
        "turn: level within two turns",
        TURN,
        "cgpu_lesser(arbiter->level_ns[high], least + 2 * quantum)",
        "arbiter->level_ns[high]",
    ),
    (
        "turn: not longer than two",
        TURN,
        "2 * real_ns(holder, quantum_of(arbiter, holder->high))",
        "UINT64_MAX",
    ),
    (
        "turn: until no longer behind",
        TURN,
        "real_ns(holder, cgpu_since(other->virtual_ns, holder->virtual_ns))",
        "0",
    ),
    (
        "turn: who waited longest",
        TURN,
        "tenant->closed_ns < arbiter->tenants[best].closed_ns",
        "tenant->virtual_ns < arbiter->tenants[best].virtual_ns",
    ),
    (
        "turn: lag of a quantum",
        TURN,
        "cgpu_larger(CGPU_TURNS_NS, CGPU_TURNS_LAGS * lag)",
        "CGPU_TURNS_NS",
    ),
    ("turn: absent", TURN, "if (is_absent(holder, now)) {", "if (false) {"),
    (
        "turn: absent ones give way",
        TURN,
        "holder->absent_until = now + (2 * CGPU_ABSENT_NS << holder->absences);",
        "",
    ),
    (
        "turn: expired ones wait",
        TURN,
        "if (tenant->stage == CGPU_STAGE_EXPIRED && !tenant->several",
        "if (false",
    ),
    (
        "turn: expired ones on several GPUs",
        TURN,
        "CGPU_STAGE_EXPIRED && !tenant->several",
        "CGPU_STAGE_EXPIRED",
    ),
    (
        "turn: strays drain first",
        TURN,
        "tenant->stage == CGPU_STAGE_CLOSING && tenant->stray",
        "false",
    ),
    (
        "turn: a thread at an open gate comes",
        TURN,
        "!cgpu_tenant_works(holder) && !comes",
        "!cgpu_tenant_works(holder)",
    ),
    ("early: certain ends only", TURN, "demand->certain &&\n           now", "now"),
    (
        "early: not with several GPUs",
        TURN,
        "!tenant->several && demand->certain",
        "demand->certain",
    ),
    ("early: the lag", LAG, "CGPU_EARLY_NS + tenant->demand.lag_ns", "CGPU_EARLY_NS"),
    ("early: no lag for several GPUs", LAG, "tenant == NULL || tenant->several", "tenant == NULL"),
    ("start: the lag", TURN, "CGPU_START_NS + cgpu_lag_least(arbiter)", "CGPU_START_NS"),
    ("review: strays", REVIEW, "tenant->stray = true", "tenant->stray = false"),
    (
        "review: give_up_silent",
        REVIEW,
        "give_up_silent(arbiter, now);\n}",
        "(void)give_up_silent;\n}",
    ),
    ("charge: used_alone", CHARGE, "ns = used_alone(holder, busy_before, ns);", ";"),
    ("charge: leaves_it", CHARGE, " || leaves_it(arbiter, holder)", ""),
    (
        "charge: overlaps",
        CHARGE,
        "return tenant->present && tenant->stage == CGPU_STAGE_EXPIRED &&",
        "return false &&",
    ),
    ("charge: strays among the payers", CHARGE, " && !(tenant->stray && payer < 0)", ""),
    ("charge: the start", CHARGE, "ns = less_start(&arbiter->tenants[payer], ns);", ";"),
    ("charge: debt forgotten when idle", CHARGE, "if (idle_ns >= CGPU_ALONE_NS)", "if (false)"),
    ("charge: credit forgotten when idle", CHARGE, "if (idle_ns >= CGPU_RECENT_NS)", "if (false)"),
    ("charge: owed after a pause", CHARGE, "idle_ns < CGPU_RECENT_NS ? tenant->owed_ns : 0", "0"),
    (
        "charge: floors without absent ones",
        CHARGE,
        " &&\n            tenant->absent_until <= now",
        "",
    ),
    (
        "charge: floors without expired ones",
        CHARGE,
        "tenant->wanted && tenant->stage != CGPU_STAGE_EXPIRED",
        "tenant->wanted",
    ),
    ("charge: strays forget", CHARGE, "if (tenant->stray)", "if (false)"),
    ("charge: strays do not pay", CHARGE, "!paid && !tenant->stray", "!paid"),
    ("charge: find_risen", CHARGE, "find_risen(arbiter);\n}", ";\n}"),
    (
        "stay: charged when it ends",
        STAY,
        "tenant->stay_ns != 0 && cgpu_arbiter_takes_turns(arbiter)",
        "false",
    ),
    ("stay: owe", STAY, "owe(arbiter, tenant, others);", ";"),
    (
        "stay: owe what others had",
        STAY,
        "tenant->claim.competes + theirs;",
        "tenant->claim.competes;(void)theirs;",
    ),
    ("stay: not strays", STAY, " && !tenant->stray", ""),
    ("stay: was not idle", STAY, "tenant->active_ns = now;", ""),
    ("unused: all", UNUSED, "!tenant->quiet || !cgpu_tenant_is_capped(tenant)", "true"),
    ("unused: before", CHARGE, "ns -= cgpu_unused_before(holder, now - ns, now);", ";"),
    ("unused: after", CHARGE, "ns - cgpu_unused_after(tenant, now - ns, now)", "ns"),
    ("unused: rest of the start", UNUSED, "ended + rest", "ended + 0 * rest"),
    ("unused: quiet turns only", UNUSED, "!tenant->quiet || ", ""),
    ("rules: forget_leads", ARBITER, "forget_leads(arbiter);\n    }", ";\n    }"),
    (
        "rules: rescale",
        ARBITER,
        "rescale(tenant, arbiter->floor_ns[tenant->high], before.competes);",
        ";",
    ),
    ("soft: closed until half is caught up", TOGETHER, "most / 2 : most", "most : most"),
    ("soft: high priority first", TOGETHER, "!high_works && !tenant->ahead", "!tenant->ahead"),
    ("group: guests", BEGIN, "guest_on(group->gpus[g], now)", "-1"),
    ("group: guests with several GPUs", BEGIN, "best_complete(group, false, now)", "NULL"),
    ("group: holders first", BEGIN, "a.holds != b.holds ? a.holds : a.since_ns", "a.since_ns"),
    (
        "group: a launch that others wait for",
        BEGIN,
        "return false;\n            }\n        }\n    }\n    return cgpu_turn_is_clear",
        ";\n            }\n        }\n    }\n    return cgpu_turn_is_clear",
    ),
    (
        "group: stays_until",
        END,
        "stays_until(group, member, gpu, now);\n        if",
        "0;\n        if",
    ),
    (
        "group: what is left elsewhere",
        END,
        "left = left_elsewhere(group, member, gpu, now);",
        "left = 0;",
    ),
    (
        "group: nobody could use it",
        END,
        "    if (!somebody_could_use(",
        "    if (false && !somebody_could_use(",
    ),
    (
        "group: guests go",
        END,
        "holder->guest && somebody_could_use(",
        "false && somebody_could_use(",
    ),
    ("group: comes_back", END, "!comes_back(group, member, gpu, now)", "true"),
    ("group: help", END, "help(group, &group->members[m], g, now);", ";"),
    ("group: meets", END, "note_meeting(group, member, now);\n    if", "if"),
    (
        "group: closes what is pressed",
        END,
        "(g == gpu || is_pressed(group, member, g, now))",
        "g == gpu",
    ),
]
OPEN = (
    *("room: what is overdue soon", "turn: not longer than two", "group: holders first"),
    *("charge: strays among the payers", "charge: find_risen", "stay: was not idle"),
    *("`CGPU_MOST_NS`", "`CGPU_STOPPED_NS`", "`SAME_LOOK_NS`", "`CGPU_BUDGET_REST_NS`"),
)
# What moves no bar of the model, and what needs it.
KEPT = {
    "chain: long ones raise": "`tests/c/gate/pace_loop.c`: work does not pile up",
    "chain: what began before": "several streams: `tests/c/gate/pace_estimates.c`",
    "busy: not more than expected": "work seen late: `tests/c/gate/pace_estimates.c`",
    "charge: leaves_it": "who never launched pays nothing: `tests/c/arbiter/arbiter_charges.c`",
    "charge: floors without absent ones": "no scenario: newcomers beside a stopped container",
    "charge: floors without expired ones": "no scenario: newcomers beside a stopped container",
    "unused: quiet turns only": "no scenario: liars beside others",
    **dict.fromkeys(OPEN, "open: not tried with all scenarios"),
}


def _constant(path: str, name: str, off: str | None) -> list[Variant]:
    old = re.compile(
        rf"^(#define {name} +|.*\b{name} = )(\S.*?)( +/\*.*|, .*| }};)?$", re.MULTILINE
    )
    values = [("off", off)] if off else [("halved", r"((\2) / 2)"), ("doubled", r"((\2) * 2)")]
    return [Variant(f"`{name}` {what}", path, old, rf"\g<1>{value}\3") for what, value in values]


def _switch(name: str, path: str, old: str, new: str) -> Variant:
    literal = new.replace("\\", "\\\\")
    return Variant(f"{name} off", path, re.compile(re.escape(old)), literal)


VARIANTS = [_switch(*each) for each in SWITCHES]
VARIANTS += [variant for each in CONSTANTS for variant in _constant(*each)]
