"""The learners and modes that the ablation switches off."""

from __future__ import annotations

from bench.ablation.files import (
    ARBITER,
    BEGIN,
    BUCKET,
    CHARGE,
    DRAIN,
    END,
    ENTER,
    ESTIMATE,
    PACE,
    STAGE,
    STAY,
    SYNC,
    THREAD,
    TOGETHER,
    TURN,
    TURN_RULES,
    UNUSED,
)

# What is switched off, and the one place where: file, text and the text that replaces it.
SWITCHES = {
    ESTIMATE: [
        ("estimates: fall", "sample < ns && !lesson->cut", "false"),
        ("estimates: rise", "if (sample > ns) {", "if (false) {"),
        (
            "estimates: a new one at once",
            "lesson->key != 0 && cgpu_pace_estimate(pace, lesson->key) == 0",
            "false",
        ),
        ("estimates: less_edges", "lesson->exact ? sample : subtract_edges(sample)", "sample"),
        ("estimates: rise by an eighth at most", "cgpu_lesser(sample, 2 * ns)", "sample"),
        ("estimates: cut spans lower none", "sample < ns && !lesson->cut", "sample < ns"),
        ("estimates: fast and slow fall", "sample < ns - ns / 4 ? FALL : RISE", "RISE"),
        ("estimates: single launches raise", " || lesson->launches == 1", ""),
        ("estimates: only known ends raise", "!late && (lesson->exact", "(lesson->exact"),
        ("chain: long ones raise", "sample > ns && pace->chain_ns >= CGPU_PACE_CHAIN_NS", "false"),
    ],
    PACE: [
        (
            "estimates: a launch arrives late",
            "cgpu_later(batch->start_ns, pace->lag_ns)",
            "batch->start_ns",
        ),
        (
            "estimates: a blurred begin cuts",
            "arrival_of(pace, batch) < pace->passed_ns && pace->sharp == 0",
            "false",
        ),
        ("chain", "        cgpu_estimate_chain(pace, &lesson);", "        ;"),
        ("chain: what began before", "!beside || pace->chain_launches > 0", "true"),
        ("lag", "        learn_lag(pace, now);", "        ;"),
        ("end_of", "known || !batch->certain ? now : end_of(pace, batch, now)", "now"),
        (
            "busy: not more than expected",
            "known ? span : cgpu_lesser(span, batch->expected_ns)",
            "span",
        ),
        ("room: the lag", "flight_ns + pace->lag_ns", "flight_ns"),
        ("room: probes at once", "if (pace->probed_ns != 0) {", "if (false) {"),
        (
            "room: to the running batch's end",
            "cgpu_lesser(pace->longest_ns - elapsed, left > flight ? left - flight : UINT64_MAX)",
            "left > flight ? left - flight : pace->longest_ns - elapsed",
        ),
        (
            "room: unknown kernels more and more rarely",
            "wait = elapsed / LATE_PART; /* nobody",
            "wait = 0; /* nobody",
        ),
        (
            "room: what is overdue soon",
            "cgpu_lesser(elapsed - pace->longest_ns, elapsed / LATE_PART)",
            "elapsed / LATE_PART",
        ),
        ("drain: lone kernels", "pace->longest_ns >= CGPU_PACE_LONE_NS", "false"),
        ("drain: to the expected end", "pace->uncertain == 0 && left > before", "false"),
    ],
    ENTER: [
        (
            "batches: as long as the lag asks",
            "cgpu_larger(ns, CGPU_PACE_BATCH_NS)",
            "CGPU_PACE_BATCH_NS",
        ),
        (
            "batches: on behind two markers",
            "gpu->unmarked_ns + ns <= batch_size(stream, flight)",
            "false",
        ),
        ("batches: others end too", "gpu->unmarked_ns - stream->unmarked_ns > flight / 2", "false"),
        (
            "room: what has no marker takes some",
            "cgpu_since(flight, gpu->unmarked_ns - stream->unmarked_ns)",
            "flight",
        ),
        ("room: a look after the marker", "until != 0) { /* an idle", "false) { /* an idle"),
    ],
    SYNC: [
        (
            "flight: a synchronisation ends work now",
            "cgpu_flight_pass(stream, begun, now, CGPU_SEEN_AT_ONCE)",
            "cgpu_flight_pass(stream, begun, now, CGPU_SEEN_LATE)",
        ),
        (
            "flight: who synchronises looks at what is stalled",
            "if (gpu->has_stalled) {\n        cgpu_flight_harvest",
            "if (false) {\n        cgpu_flight_harvest",
        ),
    ],
    DRAIN: [
        (
            "drain: work behind two markers",
            "phase = phase == CGPU_PHASE_MARKED ? CGPU_PHASE_DEFERRED : phase;",
            "continue;",
        ),
        (
            "idle: since the last end",
            "cgpu_larger(gpu->active_ns, ended)",
            "gpu->active_ns",
        ),
        (
            "idle: marks what has no marker",
            "unmarked != 0 || gpu->phase == CGPU_PHASE_UNCOUNTED",
            "false",
        ),
    ],
    THREAD: [
        (
            "launch: a look at each while one is unknown",
            "process->streams[0].unsure || process->gate.pace.probed_ns != 0",
            "false",
        ),
    ],
    BUCKET: [
        ("bucket: forgets at another rate", "if (limited)", "if (false)"),
        ("bucket: promised", "part(CGPU_FLIGHT_NS + bucket->lag_ns,", "part(0,"),
        ("bucket: promised lag", "CGPU_FLIGHT_NS + bucket->lag_ns", "CGPU_FLIGHT_NS"),
    ],
    TURN: [
        ("review: strays", "tenant->unscheduled = true", "tenant->unscheduled = false"),
        ("review: give_up_silent", "give_up_silent(arbiter, now);\n}", "(void)give_up_silent;\n}"),
        ("turn: absent", "if (is_absent(holder, now)) {", "if (false) {"),
        (
            "turn: absent ones give way",
            "holder->absent_until = now + (2 * CGPU_ABSENT_NS << holder->absences);",
            "",
        ),
        ("start: the lag", "CGPU_START_NS + cgpu_lag_least(arbiter)", "CGPU_START_NS"),
    ],
    TURN_RULES: [
        ("early: the lag", "CGPU_EARLY_NS + tenant->demand.lag_ns", "CGPU_EARLY_NS"),
        (
            "turn: work in flight",
            "cgpu_since(left, CGPU_FLIGHT_NS + holder->demand.lag_ns)",
            "left",
        ),
        (
            "turn: work in flight, the lag",
            "cgpu_since(left, CGPU_FLIGHT_NS + holder->demand.lag_ns)",
            "cgpu_since(left, CGPU_FLIGHT_NS)",
        ),
        ("turn: rest of a turn", "return quantum / 8;", "return 0;"),
        (
            "turn: level within two turns",
            "cgpu_lesser(arbiter->round_end_ns[high], least + 2 * quantum)",
            "arbiter->round_end_ns[high]",
        ),
        (
            "turn: until no longer behind",
            "real_ns(holder, cgpu_since(other->virtual_ns, holder->virtual_ns))",
            "0",
        ),
        (
            "turn: who waited longest",
            "tenant->closed_ns < best->closed_ns",
            "tenant->virtual_ns < best->virtual_ns",
        ),
        (
            "turn: lag of a quantum",
            "cgpu_larger(CGPU_ROUND_NS, CGPU_ROUND_LAGS * lag)",
            "CGPU_ROUND_NS",
        ),
        (
            "turn: expired ones wait",
            "if (tenant->state == CGPU_STATE_EXPIRED && !tenant->several",
            "if (false",
        ),
        (
            "turn: expired ones on several GPUs",
            "CGPU_STATE_EXPIRED && !tenant->several",
            "CGPU_STATE_EXPIRED",
        ),
        (
            "turn: strays drain first",
            "cgpu_tenant_is_draining(tenant) && tenant->unscheduled",
            "false",
        ),
        ("early: certain ends only", "demand->certain &&\n           now", "now"),
        ("early: not with several GPUs", "!tenant->several && demand->certain", "demand->certain"),
    ],
    CHARGE: [
        ("charge: used_alone", "ns = used_alone(holder, busy_before, ns);", ";"),
        ("charge: used_alone without work in flight", " || !cgpu_tenant_works(holder)", ""),
        ("charge: strays among the payers", " && !(tenant->unscheduled && payer == NULL)", ""),
        ("charge: the start", "ns = less_start(arbiter, payer, ns);", ";"),
        ("charge: owed after a pause", "idle_ns < CGPU_RECENT_NS ? tenant->owed_ns : 0", "0"),
        ("charge: lead after a pause", "idle_ns < CGPU_RECENT_NS ? tenant->lead_ns : 0", "0"),
        (
            "charge: floors without expired ones",
            "tenant->competes && tenant->state != CGPU_STATE_EXPIRED",
            "tenant->competes",
        ),
        ("charge: strays do not pay", "!paid && !tenant->unscheduled", "!paid"),
        ("charge: find_risen", "find_risen(arbiter, now);\n}", ";\n}"),
        ("unused: before", "ns -= cgpu_idle_before(holder, now - ns, now);", ";"),
        ("unused: after", "ns - cgpu_idle_after(tenant, now - ns, now)", "ns"),
    ],
    STAGE: [
        ("charge: strays forget", "if (tenant->unscheduled)", "if (false)"),
    ],
    STAY: [
        (
            "stay: charged when it ends",
            "tenant->stalled_since_ns != 0 && cgpu_arbiter_takes_turns(arbiter)",
            "false",
        ),
        ("stay: owe", "add_debt(arbiter, tenant, others);", ";"),
        (
            "stay: owe what others had",
            "tenant->claim.competes + theirs;",
            "tenant->claim.competes;(void)theirs;",
        ),
        ("stay: not strays", " && !tenant->unscheduled", ""),
        ("stay: was not idle", "tenant->active_ns = tenant->competed_ns = now;", ""),
    ],
    UNUSED: [
        ("unused: all", "!tenant->quiet || !cgpu_tenant_is_capped(tenant)", "true"),
        (
            "unused: rest of the start",
            "cgpu_since(now, ended), rest",
            "cgpu_since(now, ended), 0 * rest",
        ),
        ("unused: quiet turns only", "!tenant->quiet || ", ""),
    ],
    ARBITER: [
        ("rules: forget_leads", "discipline->leave(arbiter);\n    }", "discipline;\n    }"),
    ],
    TOGETHER: [
        ("soft: closed until half is caught up", "most / 2 : most", "most : most"),
        ("soft: high priority first", "!high_works && !tenant->ahead", "!tenant->ahead"),
    ],
    BEGIN: [
        ("group: others than those whose turn it is", "best_complete(group, false, now)", "NULL"),
        (
            "group: a launch that others wait for",
            "return false;\n            }\n        }\n    }\n    return cgpu_overlap_may",
            ";\n            }\n        }\n    }\n    return cgpu_overlap_may",
        ),
    ],
    END: [
        ("group: comes_back", "!comes_back(group, member, gpu, now)", "true"),
        ("group: help", "help(group, &group->members[m], g, now);", ";"),
        ("group: meets", "note_meeting(group, member, now);\n    if", "if"),
        (
            "group: closes what is pressed",
            "(g == gpu || is_pressed(group, member, g, now))",
            "g == gpu",
        ),
    ],
}
