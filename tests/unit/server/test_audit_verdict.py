"""The audit's verdicts, by tables (MEM-9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_server.audit.interfaces import match_interface
from cgpu_server.audit.verdict import (
    CALM,
    DRIFT_BYTES,
    MIB,
    Discrepancy,
    LedgerAccount,
    ReportedMemory,
    Verdict,
    compute_allowance,
    excuse_bypasses,
    intersect_verdicts,
    judge_container,
    merge_larger,
    sum_explained,
)

pytestmark = pytest.mark.unit

CONTEXT = 104 * MIB
FREE = compute_allowance(CONTEXT)
ALL = 1 << 40


def held(*used: int, own: int = 1, ends: bool = False) -> list[ReportedMemory]:
    """Processes 100, 101, ... of the host that go by the ids 1, 2, ..."""
    return [ReportedMemory(100 + i, own + i, bytes_, ends) for i, bytes_ in enumerate(used)]


def account(*used: int, total: int | None = None) -> LedgerAccount:
    slots = {1 + i: bytes_ for i, bytes_ in enumerate(used)}
    return LedgerAccount(sum(used) if total is None else total, slots)


def sharing(slots: dict[int, int], shared: dict[int, int]) -> LedgerAccount:
    """A ledger in which those of ``shared`` have imported what others are charged for."""
    return LedgerAccount(sum(slots.values()), slots, shared)


CASES = {
    "nobody": ([], account(), CALM),
    "an empty container that charged": ([], account(500), CALM),
    "exactly what was charged": (held(500 * MIB), account(500 * MIB), CALM),
    "less than was charged": (held(100 * MIB), account(500 * MIB), CALM),
    "all of the allowance": (held(500 * MIB + FREE), account(500 * MIB), CALM),
    "a byte more": (
        held(500 * MIB + FREE + 1),
        account(500 * MIB),
        Verdict(1, (Discrepancy("drift", (100,), 1),)),
    ),
    "more than any drift": (
        held(500 * MIB + FREE + DRIFT_BYTES + 1),
        account(500 * MIB),
        Verdict(DRIFT_BYTES + 1, (Discrepancy("bypass", (100,), DRIFT_BYTES + 1),)),
    ),
    "a process without a slot, from the first byte": (
        held(500 * MIB, CONTEXT),
        account(500 * MIB),
        Verdict(CONTEXT, (Discrepancy("bypass", (101,), CONTEXT),)),
    ),
    "what one has too much is no credit for another": (
        held(CONTEXT, CONTEXT),
        account(900 * MIB),
        Verdict(CONTEXT, (Discrepancy("bypass", (101,), CONTEXT),)),
    ),
    "a process that ends has lost its slot before its memory": (
        held(500 * MIB, ends=True),
        account(),
        Verdict(500 * MIB, (Discrepancy("drift", (100,), 500 * MIB),)),
    ),
    "a ruined ledger": (
        held(500 * MIB, CONTEXT),
        LedgerAccount(0, {}),
        Verdict(
            500 * MIB + CONTEXT,
            (Discrepancy("bypass", (100,), 500 * MIB), Discrepancy("bypass", (101,), CONTEXT)),
        ),
    ),
    "a sum made smaller than its parts": (
        held(900 * MIB),
        account(900 * MIB, total=0),
        Verdict(900 * MIB - FREE, (Discrepancy("bypass", (), 900 * MIB - FREE),)),
    ),
    "a slot of another's id explains nothing, for its sum is not charged": (
        held(900 * MIB),
        LedgerAccount(0, {1: 900 * MIB, 7: 900 * MIB}),
        Verdict(900 * MIB - FREE, (Discrepancy("bypass", (), 900 * MIB - FREE),)),
    ),
    "of two importers the ledger charges one, and the driver names the other": (
        held(CONTEXT, CONTEXT + 5000 * MIB),
        sharing({1: CONTEXT + 5000 * MIB, 2: CONTEXT}, {2: 5000 * MIB}),
        CALM,
    ),
    "more than it has imported": (
        held(CONTEXT, CONTEXT + 6000 * MIB + FREE),
        sharing({1: CONTEXT + 5000 * MIB, 2: CONTEXT}, {2: 5000 * MIB}),
        Verdict(1000 * MIB, (Discrepancy("bypass", (101,), 1000 * MIB),)),
    ),
    "what it claims to have imported is in no sum": (
        held(CONTEXT, CONTEXT + 5000 * MIB),
        sharing({1: CONTEXT, 2: CONTEXT}, {2: 4000 * MIB}),
        Verdict(
            5000 * MIB - 2 * FREE,
            (
                Discrepancy("bypass", (101,), 1000 * MIB - FREE),
                Discrepancy("bypass", (), 4000 * MIB - FREE),
            ),
        ),
    ),
    "two that go by one id in nested namespaces": (
        [ReportedMemory(100, 1, 700 * MIB), ReportedMemory(101, 1, CONTEXT)],
        account(700 * MIB + CONTEXT),
        CALM,
    ),
    "of two that go by one id, the one that holds more than the slot is accused": (
        [ReportedMemory(100, 1, 700 * MIB), ReportedMemory(101, 1, 2000 * MIB)],
        account(700 * MIB),
        Verdict(2000 * MIB - 2 * FREE, (Discrepancy("bypass", (101,), 2000 * MIB - 2 * FREE),)),
    ),
    "and neither, where either may be what the slot is for": (
        [ReportedMemory(100, 1, 1000 * MIB), ReportedMemory(101, 1, 1000 * MIB)],
        account(1000 * MIB),
        Verdict(1000 * MIB - 2 * FREE, (Discrepancy("drift", (100, 101), 1000 * MIB - 2 * FREE),)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_the_driver_and_the_ledger_say(
    case: tuple[list[ReportedMemory], LedgerAccount, Verdict],
) -> None:
    theirs, ledger, verdict = case
    assert judge_container(theirs, ledger, CONTEXT, ALL) == verdict


def test_where_contexts_cost_nobody_knows_what_a_bare_one_is_free() -> None:
    bare = held(616 * MIB)
    assert judge_container(bare, LedgerAccount(0, {}), 0, ALL) == CALM
    assert (
        judge_container(held(compute_allowance(0) + 1), LedgerAccount(0, {}), 0, ALL).outside_bytes
        == 1
    )


def test_no_more_is_charged_than_the_gpu_holds() -> None:
    """The figures of processes may count memory twice that they share."""
    imports = held(CONTEXT, 4000 * MIB)
    ledger = account(CONTEXT, CONTEXT)
    assert judge_container(imports, ledger, CONTEXT, 0) == CALM
    assert judge_container(imports, ledger, CONTEXT, 7).outside_bytes == 7
    both, one_pays = held(700, 700), sharing({1: 700, 2: 0}, {2: 700})
    assert sum_explained(both, one_pays) == 700


@pytest.mark.parametrize(
    ("importers", "more", "kind"),
    [(2, -1, "drift"), (2, 0, "bypass"), (1, -1, "bypass")],
)
def test_the_driver_may_name_each_importer_of_the_same_memory(
    importers: int, more: int, kind: str
) -> None:
    """If the whole GPU has as much in use, it is not the same memory."""
    both = held(*[CONTEXT + 5000 * MIB] * 2)
    one_pays = sharing({1: CONTEXT + 5000 * MIB, 2: CONTEXT}, {2: 5000 * MIB})
    one_pays = one_pays._replace(paid_bytes=5000 * MIB, importers=importers)
    excess = 5000 * MIB - 2 * FREE
    verdict = judge_container(both, one_pays, CONTEXT, excess + more)
    assert verdict.outside_bytes == excess + min(0, more)
    assert [(each.kind, each.excess_bytes) for each in verdict.findings] == [(kind, excess)]
    assert judge_container(both, one_pays, CONTEXT, 0) == CALM


def test_what_is_exported_once_explains_no_more_than_once_for_each_importer() -> None:
    most = sharing({1: CONTEXT, 2: CONTEXT, 3: 1000 * MIB}, {1: ALL, 2: ALL})
    most = most._replace(paid_bytes=1000 * MIB, importers=2)
    theirs = held(*[CONTEXT + 4000 * MIB] * 2)
    verdict = judge_container(theirs, most, CONTEXT, 5000 * MIB)
    assert [each.kind for each in verdict.findings] == ["bypass"]
    assert verdict.outside_bytes == 5000 * MIB


def test_what_the_ledger_explains_is_no_more_than_there_is() -> None:
    assert sum_explained(held(100, 300, 7), account(200, 200)) == 100 + 200
    assert sum_explained(held(100, 300, 7), account(200, 200, total=9)) == 9


def test_of_two_looks_at_a_ledger_the_larger_figures_count() -> None:
    one = LedgerAccount(5, {1: 4, 2: 1}, {2: 7}, 8, 1)
    other = LedgerAccount(3, {1: 2, 3: 1}, {2: 9, 3: 1}, 7, 2)
    assert merge_larger(one, other) == LedgerAccount(5, {1: 4, 2: 1, 3: 1}, {2: 9, 3: 1}, 8, 2)


STEADY = [
    (CALM, Verdict(9, (Discrepancy("bypass", (1,), 9),)), CALM),
    (Verdict(9, (Discrepancy("bypass", (1,), 9),)), CALM, CALM),
    (
        Verdict(9, (Discrepancy("bypass", (1,), 9),)),
        Verdict(5, (Discrepancy("bypass", (1,), 5),)),
        Verdict(5, (Discrepancy("bypass", (1,), 5),)),
    ),
    (
        Verdict(9, (Discrepancy("bypass", (1,), 9),)),
        Verdict(5, (Discrepancy("drift", (1,), 5),)),
        Verdict(5, (Discrepancy("drift", (1,), 5),)),
    ),
    (
        Verdict(9, (Discrepancy("bypass", (1,), 9),)),
        Verdict(5, (Discrepancy("bypass", (2,), 5),)),
        Verdict(5, ()),
    ),
]


@pytest.mark.parametrize(("first", "second", "both"), STEADY)
def test_only_what_both_say_holds(first: Verdict, second: Verdict, both: Verdict) -> None:
    assert intersect_verdicts(first, second) == both


def test_who_is_excused_is_charged_all_the_same() -> None:
    ruined = Discrepancy("bypass", (), 5)
    verdict = Verdict(
        30,
        (
            Discrepancy("bypass", (1,), 9),
            Discrepancy("bypass", (2, 3), 7),
            Discrepancy("drift", (4,), 9),
        ),
    )
    kinds = [finding.kind for finding in excuse_bypasses(verdict, {1, 2}).findings]
    assert kinds == ["drift", "bypass", "drift"], "all of those that go by one id, or none"
    assert excuse_bypasses(verdict, {1, 2, 3})._replace(findings=()) == verdict._replace(
        findings=()
    )
    assert excuse_bypasses(Verdict(5, (ruined,)), {1}).findings == (ruined,)


MAPS = {
    "7f00-7f01 r-xp 00000000 fe:00 12 /usr/lib/libnvcuvid.so.535.261.03": "video",
    "7f00-7f01 r--p 00000000 fe:00 12 /usr/lib/x/libnvidia-encode.so.1": "video",
    "7f00-7f01 r-xp 00000000 fe:00 12 /a b/libGLX_nvidia.so.0 (deleted)": "graphics",
    "7f00-7f01 r-xp 00000000 fe:00 12 /opt/libnvoptix.so.1": "graphics",
    "7f00-7f01 r-xp 00000000 fe:00 12 /usr/lib/libcuda.so.535.261.03": None,
    "7f00-7f01 r-xp 00000000 fe:00 12 /home/libnvcuvid.so/program": None,
    "7f00-7f01 rw-p 00000000 00:00 0 ": None,
    "7ffc-7ffd rw-p 00000000 00:00 0 [stack]": None,
}


@pytest.mark.parametrize(("line", "interface"), MAPS.items())
def test_who_has_a_library_of_video_or_graphics_uses_it(line: str, interface: str | None) -> None:
    others = ["55-56 r-xp 00000000 fe:00 12 /usr/bin/python3", "7f-80 rw-p 00000000 00:00 0"]
    assert match_interface([*others, line]) == interface


AMOUNTS = st.integers(0, 1 << 36)
GROUPS = st.lists(st.tuples(st.integers(1, 3), AMOUNTS), max_size=6)


@given(GROUPS, st.dictionaries(st.integers(1, 3), AMOUNTS), st.integers(0, 1 << 32))
def test_nobody_is_accused_of_what_another_process_holds(
    groups: list[tuple[int, int]], slots: dict[int, int], context: int
) -> None:
    """Whoever else goes by its id: alone in its container it would be accused as well."""
    theirs = [ReportedMemory(100 + n, own, used) for n, (own, used) in enumerate(groups)]
    verdict = judge_container(theirs, LedgerAccount(ALL, slots), context, ALL)
    accused = {pid for each in verdict.findings if each.kind == "bypass" for pid in each.pids}
    for each in theirs:
        if each.pid in accused:
            alone = judge_container([each], LedgerAccount(ALL, slots), context, ALL)
            assert [finding.pids for finding in alone.findings] == [(each.pid,)]


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=5), st.integers(0, 1 << 32))
def test_an_honest_ledger_is_never_accused(pairs: list[tuple[int, int]], context: int) -> None:
    """Whatever was charged before it was used."""
    theirs = held(*(used for used, _ in pairs))
    ledger = account(*(used + more for used, more in pairs))
    assert judge_container(theirs, ledger, context, ALL) == CALM


BY_PID = st.dictionaries(st.integers(1, 5), AMOUNTS)


@given(st.lists(AMOUNTS, min_size=1, max_size=5), BY_PID, BY_PID, AMOUNTS)
def test_with_the_charge_the_container_is_where_the_driver_says(
    used: list[int], slots: dict[int, int], shared: dict[int, int], total: int
) -> None:
    """But for the allowances: whatever is in the ledger, hostile or not."""
    theirs = held(*used)
    charge = judge_container(
        theirs, LedgerAccount(total, slots, shared), CONTEXT, ALL
    ).outside_bytes
    assert total + charge >= sum(used) - len(used) * FREE
