"""What an agent leaves on its node of pods: no more than decisions can be held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_node import allocation_annotation, podspecs
from cgpu_node.allocation_annotation import AllocationAnnotation, Grant
from cgpu_node.podspecs import Limit, PodSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

UUID = "GPU-10000000-0000-4000-8000-000000000000"


def test_a_pod_of_thousands_of_containers_takes_no_room_on_the_node(tmp_path: Path) -> None:
    """REL-5: an API server keeps 1.5 MB of it, and all containers share the state directory."""
    state = str(tmp_path)
    for count, is_left in ((900, True), (40_000, False)):
        names = [f"c{number}" for number in range(count)]
        podspecs.write_spec(state, f"u{count}", PodSpec("ml/p", dict.fromkeys(names, Limit(1))))
        assert (podspecs.read_spec(state, f"u{count}") is not None) == is_left
    assert podspecs.list_uids(state) == ["u900"]


def test_what_is_too_long_to_be_left_has_no_decision_either() -> None:
    """A name of a container may be short, but a GPU's never is."""
    containers = {f"c{number}": {UUID: Grant(1)} for number in range(1100)}
    with pytest.raises(CgpuError, match="expected at most 65536"):
        allocation_annotation.format_annotation(AllocationAnnotation("u", "gpu-a", containers))
