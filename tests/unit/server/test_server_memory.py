"""Caps and the default size, and their change while containers run (MEM-8, ENV-4)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import cgpu_native
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_env.errors import printable
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings import rules
from cgpu_node.settings.rules import Defaults
from cgpu_node.shares import change, record
from cgpu_node.shares.change import Notes
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from cgpu_node.view.usage import use_of
from lab.driver.attached import AttachedLedger
from lab.shares.changing import change_container, change_default, change_gpus

pytestmark = pytest.mark.unit

MIB = 1 << 20
TOTAL = 1000 * MIB
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
GPUS = tuple(NodeGpu(i, uuid, "Tesla T4", TOTAL, 0, ()) for i, uuid in enumerate(UUIDS))


def admit(registry: Registry, name: str, *caps: int) -> Path:
    """A container with these caps, in MiB, on the first GPUs."""
    node = Node("1", "/", {}, {}, GPUS, ())
    shares = tuple(GpuShare(i, UUIDS[i], cap * MIB) for i, cap in enumerate(caps))
    owner = Owner(os.getpid(), start_time(os.getpid()) or 0, None)
    request = Request(shares, 1, high_priority=False)
    return Path(registry.admit(name, "container", request, node, owner, ["true"]))


def change_memory(registry: Registry, name: str, wanted: object, **more: Any) -> Notes:
    """Another cap, in bytes."""
    return change_container(registry, name, {"memsize": wanted}, Defaults(), **more)


def caps(directory: Path) -> list[int]:
    """In MiB, as the container's processes read them."""
    return [gpu.cap_bytes // MIB for gpu in cgpu_native.read_limits(directory / "limits").gpus]


def promised(registry: Registry, name: str) -> list[int]:
    """In MiB, as admission reads them."""
    (entry,) = (entry for entry in registry.list_records() if entry.id == name)
    return [share.cap_bytes // MIB for share in entry.gpus]


def test_a_cap_changes_in_page_and_record(registry: Registry) -> None:
    """MEM-8."""
    directory = admit(registry, "a", 300)
    for wanted in (100, 1000, 999):
        change_memory(registry, "a", wanted * MIB)
        assert caps(directory) == promised(registry, "a") == [wanted]


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": 21},
        {"highprio": 2},
        {"memsize": TOTAL},
        {"memsize": 0},
        {"weight": 4, "highprio": 1, "memsize": TOTAL},
    ],
)
def test_what_is_changed_together_is_changed_or_not_together(
    registry: Registry, wrong: dict[str, int]
) -> None:
    """MEM-8, SCH-9: whichever of them cannot be."""
    directory = admit(registry, "a", 300, 300)
    other = admit(registry, "b", 1, 500)
    good = {"weight": 4, "highprio": 1, "memsize": 200 * MIB}
    before = [each.read_bytes() for each in (*directory.iterdir(), *other.iterdir())]
    with pytest.raises(CgpuError):
        change_container(registry, "a", {**good, **wrong}, Defaults())
    after = [each.read_bytes() for each in (*directory.iterdir(), *other.iterdir())]
    assert after == before
    change_container(registry, "a", good, Defaults())
    (entry, _) = registry.list_records()
    assert (entry.weight, entry.high_priority) == (4, True)
    assert caps(directory) == promised(registry, "a") == [200, 200]


@pytest.mark.parametrize(("wanted", "taken"), [(100, 100), (500, 300)])
def test_a_change_cut_short_promises_no_less_than_may_be_taken(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, wanted: int, taken: int
) -> None:
    """MEM-8, REL-2: whoever makes it may be killed before the record is there."""
    directory = admit(registry, "a", 300)
    before = sorted(path.name for path in directory.iterdir())

    def be_killed(_: str, data: bytes, *, temporary: str) -> None:
        Path(temporary).write_bytes(data)
        raise KeyboardInterrupt

    monkeypatch.setattr("cgpu_node.shares.record.write_atomically", be_killed)
    with pytest.raises(KeyboardInterrupt):
        change_memory(registry, "a", wanted * MIB)
    assert caps(directory) == [taken]
    assert promised(registry, "a") == [300]
    assert sorted(path.name for path in directory.iterdir()) == before


def test_one_gpu_of_several_can_be_named(registry: Registry) -> None:
    """MEM-8."""
    directory = admit(registry, "a", 300, 300)
    change_memory(registry, "a", 100 * MIB, uuid=UUIDS[1])
    assert caps(directory) == promised(registry, "a") == [300, 100]
    change_memory(registry, "a", 200 * MIB)
    assert caps(directory) == promised(registry, "a") == [200, 200]


def test_what_was_given_up_is_free_for_others(registry: Registry) -> None:
    """MEM-8, ENV-9."""
    admit(registry, "a", 900)
    with pytest.raises(CgpuError):
        admit(registry, "b", 200)
    change_memory(registry, "a", 800 * MIB)
    admit(registry, "b", 200)


def test_what_is_held_above_a_lowered_cap_is_not_promised_to_others(registry: Registry) -> None:
    """MEM-8: only what is given back is free, without anybody's help."""
    directory = admit(registry, "a", 900)
    with AttachedLedger.attach(directory / "ledger") as process:
        process.charge(0, 900 * MIB, 700 * MIB)
        change_memory(registry, "a", 100 * MIB)
        assert caps(directory) == [100]
        assert [gpu.cap_bytes // MIB for gpu in use_of(registry.list_records()[0]).gpus] == [100]
        with pytest.raises(CgpuError, match="300 of 1000 MiB are free"):
            admit(registry, "b", 301)
        process.release(0, 200 * MIB)
        admit(registry, "b", 301)
        with pytest.raises(CgpuError, match="500MiB of 1000MiB free"):
            change_memory(registry, "b", 501 * MIB)
        process.release(0, 500 * MIB)
        change_memory(registry, "b", 900 * MIB)
        change_memory(registry, "a", 100 * MIB)
    assert promised(registry, "a") == [100]


def test_whoever_lowers_a_cap_below_what_is_held_is_told(registry: Registry) -> None:
    """MEM-8: of each GPU whose cap was changed."""
    directory = admit(registry, "a", 300, 300)
    with AttachedLedger.attach(directory / "ledger") as process:
        for place in (0, 1):
            process.charge(place, 300 * MIB, 200 * MIB + 1)
        assert change_memory(registry, "a", 201 * MIB) == Notes()
        (answer,) = change_memory(registry, "a", 120 * MIB, uuid=UUIDS[1]).excess
        assert answer == (
            "GPU 1: it holds 201MiB, 81MiB above its cap; it keeps them, and its requests are"
            " refused until it holds less than the cap"
        )
        assert len(change_memory(registry, "a", 100 * MIB).excess) == 2
        assert change_container(registry, "a", {"weight": 2}, Defaults()) == Notes()


def test_whoever_states_a_whole_that_is_far_off_is_told(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENV-2, MEM-8: the note is kept as long as the cap is, and is not worth a failure."""
    directory = admit(registry, "a", 300, 300)
    sentence = "have 1000 MiB, not the 80 GiB of memsize=6/80: 6 of 80 is 75 MiB"
    assert change_memory(registry, "a", "6/80") == Notes((f"GPUs 0,1 {sentence}",))
    assert record.read_notes(str(directory)) == (f"GPUs 0,1 {sentence}",)
    one = f"GPU 1 {sentence.replace('have', 'has')}"
    assert change_memory(registry, "a", "6/80", uuid=UUIDS[1]).misstated == (one,)
    assert record.read_notes(str(directory)) == (one,)
    for size in ("40%", 75 * MIB, "1/1"):
        assert change_memory(registry, "a", size) == Notes()
        assert record.read_notes(str(directory)) == ()
    write = change.write_atomically

    def refuse_notes(path: str, data: bytes, **more: Any) -> None:
        if path.endswith(record.NOTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data, **more)

    monkeypatch.setattr("cgpu_node.shares.change.write_atomically", refuse_notes)
    assert len(change_memory(registry, "a", "6/80").misstated) == 1
    assert caps(directory) == [75, 75]


def test_what_a_ledger_says_beyond_what_was_promised_is_not_kept_from_others(
    registry: Registry,
) -> None:
    """MEM-8: the container can write anything there."""
    directory = admit(registry, "a", 300)
    with AttachedLedger.attach(directory / "ledger") as process:
        process.charge(0, 1 << 60, 1 << 60)
        change_memory(registry, "a", 100 * MIB)
        assert promised(registry, "a") == [300]
        admit(registry, "b", 700)


def test_a_change_that_cannot_be_written_down_is_not_made(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-8: the state directory's file system may be full."""
    directory = admit(registry, "a", 300)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("cgpu_node.shares.record.write_atomically", refuse)
    for wanted in (100, 500):
        with pytest.raises(CgpuError, match="No space left"):
            change_memory(registry, "a", wanted * MIB)
        assert caps(directory) == promised(registry, "a") == [300]


def test_what_is_taken_while_a_cap_is_lowered_is_promised_too(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-8: up to the moment in which the cap is less."""
    directory = admit(registry, "a", 300)
    set_bytes = cgpu_native.set_bytes
    with AttachedLedger.attach(directory / "ledger") as process:

        def charge_before(path: str, number: int, name: str, value: int) -> None:
            if process.read_own(0) == 0:
                process.charge(0, caps(directory)[0] * MIB, 200 * MIB)
            set_bytes(path, number, name, value)

        monkeypatch.setattr("cgpu_native.set_bytes", charge_before)
        change_memory(registry, "a", 100 * MIB)
        assert (caps(directory), promised(registry, "a")) == ([100], [200])


def test_a_cap_is_not_raised_beyond_what_is_free(registry: Registry) -> None:
    """MEM-8: as for a new container."""
    directory = admit(registry, "a", 300)
    admit(registry, "b", 500)
    with pytest.raises(CgpuError) as refusal:
        change_memory(registry, "a", 501 * MIB)
    assert str(refusal.value) == (
        f"memsize={501 * MIB}: GPU 0 has 500MiB of 1000MiB free beside the other containers"
    )
    assert caps(directory) == promised(registry, "a") == [300]
    change_memory(registry, "a", 500 * MIB)
    change_memory(registry, "a", 501 * MIB, overcommit=True)
    change_memory(registry, "a", 500 * MIB + 1)
    assert caps(directory) == [500]


_ODD_SIZES = [
    *("6GB", "6G", "6g", "6gib", "6 Gi", "1.5GiB", "-1GiB", "0x6GiB", "06GiB", "GiB", "", "%"),
    *("40.5%", "-1%", "3/", "/3", "3/0", "1/2/3", "six", "9" * 5000),
]


FAULTS: dict[object, str] = {
    **{f"6{unit}": f"there is no unit {unit}: " for unit in ("GB", "G", "g", "gib")},
    "6 Gi": "there is no unit Gi: ",
    "1.5GiB": "1.5 is not a whole number: ",
    "40.5%": "40.5 is not a whole number: ",
    1.5: "1.5 is not a whole number: ",
}


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        6,
        TOTAL + 1,
        True,
        1.5,
        None,
        "0",
        "6",
        "0MiB",
        "2GiB",
        "101%",
        "0%",
        "4/3",
        *_ODD_SIZES,
    ],
)
def test_a_cap_is_a_size_within_the_gpu(registry: Registry, value: object) -> None:
    directory = admit(registry, "a", 300)
    with pytest.raises(CgpuError) as refusal:
        change_memory(registry, "a", value, overcommit=True)
    sentence = str(refusal.value)
    is_large = value in {TOTAL + 1, "2GiB", "4/3"}
    fault = "GPU 0 has 1000MiB: " if is_large else FAULTS.get(value, "expected")
    assert sentence.startswith(f"memsize={printable(str(value))}: {fault}")
    assert sentence.partition(": did you mean")[0].endswith(
        "expected from 1MiB to 1000MiB, such as 6GiB, 512MiB, 40% or 6/15 of the GPU; a number"
        " without a unit is in bytes"
    )
    assert caps(directory) == [300]


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("100MiB", 100),
        (" 100MiB\n", 100),
        ("40%", 400),
        ("6/15", 400),
        (str(MIB), 1),
        ("100%", 1000),
    ],
)
def test_a_cap_is_given_in_the_units_that_people_type(
    registry: Registry, text: str, cap: int
) -> None:
    """MEM-8."""
    directory = admit(registry, "a", 300)
    change_memory(registry, "a", text)
    assert caps(directory) == [cap]


def test_a_refused_cap_is_repeated_as_it_was_typed(registry: Registry) -> None:
    """MEM-8."""
    admit(registry, "a", 300)
    admit(registry, "b", 500)
    with pytest.raises(CgpuError, match=r"^memsize=60%: GPU 0 has 500MiB of 1000MiB free"):
        change_memory(registry, "a", "60%")


@pytest.mark.parametrize(
    "value", [1, 2, 6, MIB - 1, "2", "101%", "4/3", "1/1025", "1/1048576", True, "-1", *_ODD_SIZES]
)
def test_a_default_size_of_some_bytes_is_refused(registry: Registry, value: object) -> None:
    """ENV-4: whoever writes 2 means GiB, and no container could start under two bytes."""
    with pytest.raises(CgpuError) as refusal:
        change_default(registry, value)
    sentence = str(refusal.value)
    assert sentence.startswith(
        f"default_memsize={printable(str(value))}: {FAULTS.get(value, 'expected')}"
    )
    assert sentence.endswith(
        "expected 0 for none or at least 1MiB, or a part of each GPU from 1/1024 to 100%, such as"
        " 6GiB, 512MiB, 40% or 6/15; a number without a unit is in bytes"
    )
    assert not Path(registry.state_dir, rules.FILE).exists()


@pytest.mark.parametrize(
    ("value", "size"),
    [
        *(("2GiB", 2 << 30), ("512MiB", 512 * MIB), (MIB, MIB), ("0", 0), (0, 0)),
        *(("40%", "40%"), (" 6/15\n", "6/15"), ("1/1024", "1/1024"), ("0%", 0), ("0/15", 0)),
    ],
)
def test_a_default_size_has_the_units_of_a_cap(
    registry: Registry, value: object, size: int | str
) -> None:
    """ENV-4: a part is of each GPU, so it stays one until a container comes."""
    change_default(registry, value)
    assert rules.default_memsize(registry.state_dir, 7) == size


def test_the_default_size_outlives_other_changes(registry: Registry) -> None:
    """ENV-4, SCH-9: they are kept in one file."""
    admit(registry, "a", 300)
    change_default(registry, 5 * MIB)
    change_gpus(registry, [GPUS[0]], {"policy": 2}, Defaults())
    change_container(registry, "a", {"weight": 3}, Defaults())
    assert rules.default_memsize(registry.state_dir, 7) == 5 * MIB
    assert rules.read_changes(registry.state_dir) == {UUIDS[0]: {"policy": 2}}
    change_default(registry, 0)
    assert rules.default_memsize(registry.state_dir, 7) == 0
    assert rules.read_changes(registry.state_dir) == {UUIDS[0]: {"policy": 2}}


def test_a_wrong_default_size_is_refused_and_a_damaged_one_not_followed(registry: Registry) -> None:
    with pytest.raises(CgpuError, match="default_memsize=-1: expected 0 for none or at least 1MiB"):
        change_default(registry, -1)
    path = Path(registry.state_dir, rules.FILE)
    for node in ({"default_memsize": -1}, {"default_memsize": "1"}, {"default_memsize": "4/3"}, 3):
        path.write_text(json.dumps({"version": 1, "gpus": {}, "node": node}))
        assert rules.default_memsize(registry.state_dir, 7) == 7
