"""Claims without cores at a driver that runs as a process. DRA-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_native import read_limits
from cgpu_node.shares.record import rewrite_record
from lab.cluster.claim_lab import ClaimLab
from lab.cluster.claims import result
from lab.kubernetes.agents import fake_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration


@pytest.fixture
def served(fake: FakeServer, tmp_path: Path) -> Iterator[ClaimLab]:
    """A node with the driver."""
    with fake_engine(tmp_path / "engine") as engine:
        lab = ClaimLab(fake, engine, tmp_path)
        with lab.running():
            yield lab


def test_dra_2_a_claim_without_cores_is_held_where_all_cores_are_claimed(served: ClaimLab) -> None:
    """The scheduler, which counts no weight, may choose it though another GPU is empty."""
    every = served.claim(result(0, "1Gi", "100"), name="every")
    some = [served.claim(result(0, f"{n}Gi", "0"), name=f"some-{n}") for n in (3, 6)]
    for item in (every, *some):
        assert served.prepare(item)[item["metadata"]["uid"]].error == ""
    held = {each.command[0]: each for each in served.held()}
    assert [held[f"default/{name}"].weight for name in ("every", "some-3", "some-6")] == [20, 0, 0]
    assert parts(served) == {"every": 99.6, "some-3": 0.1, "some-6": 0.3}
    assert served.unprepare(every) == {every["metadata"]["uid"]: ""}
    half = served.claim(result(0, "1Gi", "50"), name="half")
    assert served.prepare(half)[half["metadata"]["uid"]].error == ""
    assert parts(served) == {"half": 50.0, "some-3": 16.7, "some-6": 33.3}


def parts(served: ClaimLab) -> dict[str, float]:
    """The percent of the first GPU's time that each claim has by its limits, without an arbiter."""
    return {
        each.command[0].partition("/")[2]: round(
            read_limits(f"{each.directory}/limits").gpus[0].share_ppm / 10_000, 1
        )
        for each in served.held()
    }


def test_dra_2_a_claim_without_cores_that_is_held_with_a_weight_is_refused(
    served: ClaimLab,
) -> None:
    item = served.claim(result(0, "2500Mi", "0"))
    uid = item["metadata"]["uid"]
    served.prepare(item)
    [record] = served.held()
    rewrite_record(str(served.state), record._replace(weight=2))
    error = served.prepare(item)[uid].error
    assert "with weight 2 for it, and its allocation says 2500 MiB of GPU 0" in error
    assert "without cores" in error
