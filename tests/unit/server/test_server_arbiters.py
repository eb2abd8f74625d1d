"""The server's arbitrations follow the containers and the rules (SCH-9, REL-2)."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

import cgpu_native
from cgpu_env import GpuShare
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.record import Owner, Record
from cgpu_server.state.arbiters import Arbiters

pytestmark = pytest.mark.unit

GPUS = ("GPU-0", "GPU-1", "GPU-2")


class Fake:
    """An arbitration that keeps a diary."""

    def __init__(self, diary: list[tuple[object, ...]], rules: Rules) -> None:
        self.diary = diary
        self.keys = 0
        self.broken: set[str] = set()
        self.begun: list[int] = []
        """How much of the diary was written when it began."""
        diary.append(("start", *rules))

    def begin(self) -> None:
        self.begun.append(len(self.diary))

    def set_rules(self, **rules: int) -> None:
        self.diary.append(("rules", *Rules(**rules)))

    def add(
        self, limits: str, ledger: str, *, number: int, weight: int, high_priority: bool
    ) -> int:
        name = Path(limits).parent.name
        assert Path(ledger).parent == Path(limits).parent
        if name in self.broken:
            raise cgpu_native.FormatError(-1, "no ledger")
        self.keys += 1
        self.diary.append(("add", name, number, weight, high_priority))
        return self.keys

    def set_tenant(self, key: int, *, weight: int, high_priority: bool) -> None:
        self.diary.append(("tenant", key, weight, high_priority))

    def remove(self, key: int) -> None:
        self.diary.append(("remove", key))

    def read_figures(self) -> object:
        return "figures"

    def close(self) -> None:
        self.diary.append(("close",))


class World:
    """Containers in a folder, and the arbiters that follow them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.diary: list[tuple[object, ...]] = []
        self.made: list[Fake] = []
        self.arbiters = Arbiters(self._start, self._join)  # type: ignore[arg-type]

    def _start(self, **rules: int) -> Fake:
        self.made.append(Fake(self.diary, Rules(**rules)))
        return self.made[-1]

    def _join(self, fakes: list[Fake]) -> None:
        self.diary.append(("join", *(self.made.index(fake) for fake in fakes)))

    def container(self, name: str, *gpus: int, weight: int = 1) -> Record:
        directory = self.folder / name
        directory.mkdir(exist_ok=True)
        (directory / "limits").touch()
        shares = tuple(GpuShare(i, GPUS[i], 1) for i in gpus)
        owner = Owner(os.getpid(), 0, None)
        return Record(name, "container", owner, shares, weight, False, 6, (), str(directory))  # noqa: FBT003

    def reconcile(self, *records: Record, rules: Rules | None = None) -> list[tuple[object, ...]]:
        """What this made the arbiters do."""
        before = len(self.diary)
        self.arbiters.reconcile(records, dict.fromkeys(GPUS, rules or Rules()))
        return self.diary[before:]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_gpu_with_containers_has_one_arbitration(world: World) -> None:
    a, b = world.container("a", 0), world.container("b", 1, 0, weight=3)
    assert world.reconcile(a, b) == [
        ("start", 6, 20, 80),
        ("add", "a", 0, 1, False),
        ("add", "b", 1, 3, False),
        ("start", 6, 20, 80),
        ("add", "b", 0, 3, False),
        ("join", 0, 1),
    ]
    assert world.arbiters.read_figures() == dict.fromkeys(GPUS[:2], "figures")
    assert world.reconcile(a, b) == []


def test_arbitrations_begin_once_when_all_that_run_have_been_added_rel_2(world: World) -> None:
    """Gates that an earlier arbiter left open would be unknown to them, and stay so."""
    world.reconcile(world.container("a", 0), world.container("b", 1, 0))
    added = len(world.diary)
    world.reconcile(*(world.container(name, 0, 1) for name in "abc"))
    assert [fake.begun for fake in world.made] == [[added], [added]]


def test_who_goes_is_let_go_and_the_last_ends_the_arbitration(world: World) -> None:
    a, b = world.container("a", 0), world.container("b", 0)
    world.reconcile(a, b)
    assert world.reconcile(b) == [("remove", 1)]
    assert world.reconcile() == [("close",)]
    assert world.arbiters.read_figures() == {}


def test_each_that_comes_is_told_and_each_that_leaves(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The last one on a GPU too."""
    caplog.set_level(logging.INFO, "cgpud")
    a, b = world.container("a", 0), world.container("b", 0)
    for records in ([a, b], [b], []):
        world.reconcile(*records)
    events = [tuple(message.split()[:2]) for message in caplog.messages]
    assert events == [
        ("arbitration_begins", "gpu=GPU-0"),
        ("container_comes", "container=a"),
        ("container_comes", "container=b"),
        ("container_leaves", "container=a"),
        ("container_leaves", "container=b"),
        ("arbitration_ends", "gpu=GPU-0"),
    ]


def joined(diary: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The GPUs that take turns together from then on, in the order in which they started."""
    return [words[1:] for words in diary if words[0] == "join"]


def test_gpus_that_containers_have_together_take_turns_together(world: World) -> None:
    """SCH-12: also GPUs that only two containers together connect."""
    a, b, c = world.container("a", 0, 1), world.container("b", 1, 2), world.container("c", 2)
    assert joined(world.reconcile(a)) == [(0, 1)]
    assert joined(world.reconcile(a, c)) == []
    assert joined(world.reconcile(a, b, c)) == [(0, 1, 2)]
    assert joined(world.reconcile(a, b, c)) == []


def test_gpus_take_turns_apart_again_when_the_container_that_had_both_ends(world: World) -> None:
    """SCH-12."""
    a, b, c = world.container("a", 0, 1), world.container("b", 0), world.container("c", 1)
    world.reconcile(a, b, c)
    assert sorted(joined(world.reconcile(b, c))) == [(0,), (1,)]
    assert joined(world.reconcile(b, c)) == []


def test_gpus_that_cannot_be_joined_are_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCH-12."""

    def failing(_: list[Fake]) -> None:
        raise OSError(11, "no thread")

    a = world.container("a", 0, 1)
    monkeypatch.setattr(world.arbiters, "_join", failing)
    world.reconcile(a)
    monkeypatch.setattr(world.arbiters, "_join", world._join)  # noqa: SLF001
    assert world.reconcile(a) == [("join", 0, 1)]


def test_changed_rules_and_terms_are_passed_on(world: World) -> None:
    """SCH-9."""
    world.reconcile(world.container("a", 0))
    changed = world.reconcile(world.container("a", 0, weight=4), rules=Rules(2, 10, 50))
    assert changed == [("rules", 2, 10, 50), ("tenant", 1, 4, False)]


def test_another_container_of_the_same_name_is_another_one(world: World) -> None:
    """REL-3: docker restarts a container under its old id."""
    world.reconcile(world.container("a", 0))
    shutil.move(world.folder / "a", world.folder / "old")
    assert world.reconcile(world.container("a", 0)) == [("remove", 1), ("add", "a", 0, 1, False)]


def test_what_cannot_be_taken_on_is_tried_again_and_disturbs_nobody(world: World) -> None:
    """REL-5: a container that ruined its own ledger."""
    a, b = world.container("a", 0), world.container("b", 0)
    world.reconcile(b)
    world.made[0].broken = {"a"}
    assert world.reconcile(a, b) == []
    world.made[0].broken = set()
    assert world.reconcile(a, b) == [("add", "a", 0, 1, False)]


def test_a_container_that_has_just_ended_is_left_out(world: World) -> None:
    a = world.container("a", 0)
    shutil.rmtree(a.directory)
    assert world.reconcile(a) == []


def test_an_arbitration_that_cannot_start_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-2."""

    def failing(**_: int) -> Fake:
        raise OSError(11, "no thread")

    a = world.container("a", 0)
    monkeypatch.setattr(world.arbiters, "_start", failing)
    assert world.reconcile(a) == []
    monkeypatch.setattr(world.arbiters, "_start", world._start)  # noqa: SLF001
    assert world.reconcile(a)[0] == ("start", 6, 20, 80)
