"""What ``cgpu install`` and ``uninstall`` say to whoever is not root (CLI-4)."""

from __future__ import annotations

import os

import pytest

from cgpu_cli.commands import commands
from cgpu_cli.commands import install as install_command
from cgpu_env import CgpuError
from cgpu_install.machine import ClosedError

pytestmark = pytest.mark.unit
CLOSED = "/var/lib/cgpu/backup/etc/docker/daemon.json: Permission denied"


def refused(monkeypatch: pytest.MonkeyPatch, *words: str) -> CgpuError:
    """The refusal of a command of a user's, who may not read what root has installed."""

    def closed(*_: object) -> None:
        raise ClosedError(CLOSED)

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(install_command, "_job", closed)
    given = commands.arguments().parse_args(words)
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
