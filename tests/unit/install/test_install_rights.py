"""What ``cgpu install`` and ``uninstall`` say where they can or need change nothing (CLI-4)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cgpu_cli.commands import commands
from cgpu_cli.commands import install as install_command
from cgpu_env import CgpuError
from cgpu_install.journal import Journal
from cgpu_install.machine import Change, ClosedError, Machine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit
CLOSED = "/var/lib/cgpu/backup/etc/docker/daemon.json: Permission denied"


def refused(monkeypatch: pytest.MonkeyPatch, *words: str) -> CgpuError:
    """The refusal of a command of a user's, who may not read what root has installed."""

    def closed(*_: object) -> None:
        raise ClosedError(CLOSED)

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(install_command, "_make_job", closed)
    given = commands.build_parser().parse_args(words)
    with pytest.raises(CgpuError, match=r"^you are not root") as refusal:
        given.command.run(given)
    return refusal.value


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_user_is_no_root_and_learns_of_no_backup(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for words in ((command,), (command, "--dry-run")):
        error = refused(monkeypatch, *words)
        assert "/var/lib/cgpu" not in str(error)
        assert error.hint == f"as root: cgpu {' '.join(words)}"


def test_a_dry_run_without_a_change_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the diff, which is empty."""

    def shown(command: str) -> tuple[str, str]:
        given = commands.build_parser().parse_args(
            [command, "docker", "--dry-run", "--root", str(tmp_path)]
        )
        assert given.command.run(given) == 0
        out, err = capsys.readouterr()
        return out, err

    assert shown("uninstall") == ("", "nothing to change: nothing is installed\n")
    Journal(Machine(str(tmp_path))).install(
        [Change("containerd", "/etc/x", None, b"x", None)], "/usr/bin"
    )
    assert shown("uninstall") == ("", "nothing to change\n")
