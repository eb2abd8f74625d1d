"""Claims that come and go at one node's driver, as its kubelet and its API server ask it."""

from __future__ import annotations

import random
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cgpu_native
from cgpu_env.values import MIB
from lab.cluster.claim_lab import ClaimLab
from lab.cluster.claims import result
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import Gpu
from lab.kubernetes.agents import fake_engine
from lab.kubernetes.fake_server import fake_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = dict[str, Any]

GPUS, SIZE, UNITS = 8, 16160, 20  # of the node; MiB and units of weight of each
CLAIMS, HELD = 1000, 24  # claims; how many there are at most at a time
_TOOK = re.compile(r"^prepared .*\bms=([0-9.]+)$", re.MULTILINE)
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Wanted(NamedTuple):
    """What a claim is to have.

    Attributes:
        item: the claim, allocated.
        caps: MiB of each GPU, by its number.
        cores: percent of their time; 0: it claims none.
    """

    item: Json
    caps: Mapping[int, int]
    cores: int


class Shuffle:
    """Claims that are created, prepared and deleted by chance, and what was wrong of them."""

    def __init__(self, lab: ClaimLab) -> None:
        self._lab, self._chance = lab, random.Random(7)
        self._free = dict.fromkeys(range(GPUS), (SIZE, UNITS))
        self._created: list[Wanted] = []
        self._prepared: list[Wanted] = []
        self.count = self.wrong = 0

    def run(self, most: int) -> None:
        """Let so many claims come, and all of them go."""
        while self.count < most or self._created or self._prepared:
            acts = [self._create] * (self.count < most and self._has_room())
            acts += [self._prepare] * bool(self._created) + [self._delete] * bool(self._prepared)
            self._chance.choice(acts)()

    def _has_room(self) -> bool:
        return len(self._created) + len(self._prepared) < HELD

    def _create(self) -> None:
        """Allocate a claim of one of the kinds, if it fits somewhere."""
        kind = self._chance.choice(("memory", "cores", "whole", "two"))
        mib = SIZE if kind == "whole" else self._chance.randrange(256, SIZE // 2)
        cores = 5 * self._chance.randint(1, 12) if kind == "cores" else 0
        units = max(1, cores // 5)
        fits = [gpu for gpu, room in self._free.items() if room[0] >= mib and room[1] >= units]
        wide = 1 + (kind == "two")
        if len(fits) < wide:
            return
        caps = dict.fromkeys(self._chance.sample(fits, wide), mib)
        self._move(caps, -units)
        self.count += 1
        parts = [result(gpu, f"{mib}Mi", str(cores)) for gpu in caps]
        made = self._lab.claim(*parts, name=f"claim-{self.count}")
        self._created.append(Wanted(made, caps, cores))

    def _move(self, caps: Mapping[int, int], units: int) -> None:
        """Take units, and the memory, from the GPUs, or give them back."""
        for gpu, mib in caps.items():
            free, left = self._free[gpu]
            self._free[gpu] = free + (mib if units > 0 else -mib), left + units

    def _take(self, some: list[Wanted]) -> Wanted:
        return some.pop(self._chance.randrange(len(some)))

    def _prepare(self) -> None:
        claim = self._take(self._created)
        [answer] = self._lab.prepare(claim.item).values()
        self.wrong += bool(answer.error) or not self._is_held(claim)
        self._prepared.append(claim)

    def _is_held(self, claim: Wanted) -> bool:
        """Whether what containers map has the caps, and the weight if the claim has cores."""
        identity = claim.item["metadata"]["uid"]
        limits = cgpu_native.read_limits(str(self._lab.state / "containers" / identity / "limits"))
        caps = {gpu.index: gpu.cap_bytes // MIB for gpu in limits.gpus}
        return caps == claim.caps and claim.cores in {0, 5 * limits.weight}

    def _delete(self) -> None:
        claim = self._take(self._prepared)
        self.wrong += not self._is_held(claim)  # others came and went beside it
        [error] = self._lab.unprepare(claim.item).values()
        self.wrong += bool(error)
        self._lab.delete(claim.item)
        self._move(claim.caps, max(1, claim.cores // 5))


@contextmanager
def serving() -> Iterator[tuple[ClaimLab, int]]:
    """A node with its driver, and the driver's process, until the end of the block."""
    gpus = [Gpu("Tesla V100-SXM2-16GB", SIZE, number) for number in range(GPUS)]
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        fake_server() as fake,
        fake_engine(Path(folder) / "engine") as engine,
    ):
        lab = ClaimLab(fake, engine, Path(folder), gpus)
        with lab.running() as process:
            wait_until(lambda: len(lab.devices()) == GPUS, "all GPUs are offered")
            yield lab, process.pid


def shuffle(lab: ClaimLab) -> Json:
    """Let CLAIMS claims come and go, and return what was wrong, what is left, and the times."""
    shuffled = Shuffle(lab)
    shuffled.run(CLAIMS)
    took = sorted(float(each) for each in _TOOK.findall(lab.log.read_text()))
    return {
        "wrong": shuffled.wrong,
        "left": len([*lab.files(), *(lab.state / "containers").iterdir()]),
        "prepare_ms": {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]},
    }


def count_writes(lab: ClaimLab) -> int:
    """How many requests that write the API server has had so far."""
    return sum(each.startswith(_WRITES) for each in lab.fake.calls)


def read_peak(pid: int) -> float:
    """The most memory that a process had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1000
