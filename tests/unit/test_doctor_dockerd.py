"""What ``cgpu doctor`` says of a dockerd that runs, and of those that are users' own (CLI-4)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import wiring
from cgpu_install import dockerd, running
from cgpu_install.engines import named
from cgpu_install.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

USER = 1000


class Processes:
    """The dockerds that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, *words: str, uid: int = 0) -> int:
        """One with a command line; returns its pid."""
        pid = 100 + len(list(self._folder.iterdir()))
        place = self._folder / str(pid)
        place.mkdir()
        (place / "cmdline").write_text("".join(f"{word}\0" for word in ("dockerd", *words)))
        os.chown(place, uid, uid)
        return pid

    def folders(self, name: str) -> Iterator[str]:
        """As ``running.processes`` has them."""
        assert name == "dockerd"
        return map(str, sorted(self._folder.iterdir()))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes(tmp_path)
    monkeypatch.setattr(running, "processes", made.folders)
    monkeypatch.setattr(dockerd, "_STARTS", ())
    monkeypatch.setattr(dockerd, "said", lambda _: 'runc {"runc":{}}')
    return made


def findings() -> list[tuple[str, str, str]]:
    """What is said where docker's file names cgpu, and dockerd does not know it."""
    [docker] = named(["docker"])
    found = wiring._dockerd(Machine(), docker, is_told=True, is_default=False)  # noqa: SLF001
    return [(f.level, f.what, f.mend) for f in found]


def test_a_dockerd_that_reads_another_file_is_told_from_one_that_has_not_read_ours(
    processes: Processes,
) -> None:
    unread = "dockerd has not read /etc/docker/daemon.json since it was changed"
    processes.start("--config-file", dockerd.FILE, "-H", "fd://")
    processes.start("--config-file=/home/me/daemon.json", uid=USER)
    [(level, what, _)] = findings()
    assert (level, what) == ("error", unread)
    processes.start("--config-file=/opt/daemon.json")
    [(level, what, mend)] = findings()
    assert level == "error"
    assert what.endswith(
        "/cmdline: --config-file=/opt/daemon.json on dockerd's command line:"
        " it does not read /etc/docker/daemon.json"
    )
    assert mend == 'add to that file: "runtimes": {"cgpu": {"path": "/usr/bin/cgpu-runtime"}}'


def test_the_command_line_of_a_users_own_dockerd_is_not_the_machines(processes: Processes) -> None:
    """It reads a file in the user's home, which cgpu leaves alone."""
    pid = processes.start("--default-runtime=crun", uid=USER)
    dockerd.check_default(Machine())
    [found] = wiring._rootless()  # noqa: SLF001
    assert (found.level, found.value) == ("note", str(pid))
    assert f"(pid {pid}) is user {USER}'s own (rootless)" in found.what
