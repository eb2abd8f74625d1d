"""DRA-7: which pods' containers have a claim, as the hook leaves it beside the claim's share."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cgpu_node.shares.claimants import add_container, join_containers, list_containers
from cgpu_node.shares.record import PodContainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

ONE, SIDE, TWO = (
    PodContainer(uid, "ml", pod, container)
    for uid, pod, container in (("8f", "one", "main"), ("8f", "one", "side"), ("3c", "two", "main"))
)


@contextmanager
def started() -> Iterator[int]:
    """A process, until the end of the block."""
    process = subprocess.Popen(["sleep", "100"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_containers_are_known_while_they_live_and_the_last_ones_until_others_come(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path)
    assert list_containers(folder) == ()
    with started() as first:
        add_container(folder, first, ONE)
        with started() as second, started() as third:
            add_container(folder, second, TWO)
            add_container(folder, third, SIDE)
            assert list_containers(folder) == (ONE, SIDE, TWO)
        assert list_containers(folder) == (ONE,), "the others have ended"
    assert list_containers(folder) == (ONE, SIDE, TWO), "nobody has it now"
    with started() as fourth:
        add_container(folder, fourth, TWO)
        assert list_containers(folder) == (TWO,)
    assert list_containers(folder) == (TWO,)
    assert len([*(tmp_path / "pods").iterdir()]) == 1, "files of those before are gone"


def test_a_pid_that_is_used_again_is_no_container(tmp_path: Path) -> None:
    folder = str(tmp_path)
    add_container(folder, os.getpid(), ONE)
    file = tmp_path / "pods" / str(os.getpid())
    file.write_text(file.read_text().replace('"start_time":', '"start_time":1'))
    with started() as pid:
        add_container(folder, pid, TWO)
        assert list_containers(folder) == (TWO,)
        assert not file.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"uid":"a"}', "\udcff"])
def test_what_is_damaged_names_nobody(tmp_path: Path, content: str) -> None:
    folder = str(tmp_path)
    (tmp_path / "pods").mkdir()
    for name in ("7", "12.new", "x"):
        (tmp_path / "pods" / name).write_bytes(os.fsencode(content))
    assert list_containers(folder) == ()
    add_container(folder, os.getpid(), ONE)
    assert [each.name for each in (tmp_path / "pods").iterdir()] == [str(os.getpid())]
    assert list_containers(folder) == (ONE,)


def test_several_are_joined_by_commas_each_name_once() -> None:
    assert join_containers("ml", [ONE, SIDE, TWO]) == ("", "ml", "one,two", "main,side")
    assert join_containers("ml", []) == ("", "ml", "", "")
