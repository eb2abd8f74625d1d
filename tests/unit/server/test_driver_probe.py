"""The process that asks the driver for the server."""

from __future__ import annotations

import subprocess
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from cgpu_env import CgpuError
from cgpu_node.settings.config import Config
from cgpu_server.audit import driver_probe
from cgpu_server.audit.auditor import Audit
from cgpu_server.audit.driver_probe import DriverProbe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

NONE = '{"gpus": [], "lost": []}'
PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


class Starved(subprocess.Popen[bytes]):
    """It gets no processor to die on while it is waited for."""

    def wait(self, timeout: float | None = None) -> NoReturn:
        assert timeout is not None
        raise subprocess.TimeoutExpired(self.args, timeout)


def test_a_process_that_dies_late_is_reaped_when_the_server_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Starved(["sh", "-c", f"read line; echo '{NONE}'; exec sleep 600"], **PIPES)
    monkeypatch.setattr(driver_probe, "start_probe", lambda *_: child)
    probe = DriverProbe(str(tmp_path))
    assert probe.read() == {}
    probe.close()
    while child.returncode is None:  # the limit on a test's time ends this
        probe.close()
    assert child.returncode == -9


def test_one_that_dies_late_is_reaped_when_the_next_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may live as long as the server."""
    late = Starved(["sh", "-c", "read line; exec sleep 600"], **PIPES)
    following = subprocess.Popen(["sh", "-c", f"while read line; do echo '{NONE}'; done"], **PIPES)
    children = iter([late, following])
    monkeypatch.setattr(driver_probe, "start_probe", lambda *_: next(children))
    probe = DriverProbe(str(tmp_path), patience=0.1)
    with pytest.raises(CgpuError, match="no answer within"):
        probe.read()
    while late.returncode is None:  # the limit on a test's time ends this
        assert probe.read() == {}
    probe.close()


def test_after_a_rest_the_driver_is_asked_again_for_what_it_failed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been late once, on a busy machine."""
    answers = f"while read line; do test -z $line || exit 1; echo '{NONE}'; done"
    start = ["sh", "-c", answers]
    monkeypatch.setattr(driver_probe, "start_probe", lambda *_: subprocess.Popen(start, **PIPES))
    probe = DriverProbe(str(tmp_path))
    for _ in range(2):
        with pytest.raises(CgpuError, match="does not say who holds memory"):
            probe.read(["GPU-0"])
        assert probe.read(["GPU-0"]) == {}
        probe.close()


def test_the_driver_is_released_without_containers_however_late_the_next_look_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sh", "-c", f"while read line; do echo '{NONE}'; done"], **PIPES)
    asked = threading.Event()

    def start(*_: object) -> subprocess.Popen[bytes]:
        asked.set()
        return child

    monkeypatch.setattr(driver_probe, "start_probe", start)
    state: Any = SimpleNamespace(
        config=Config(interval_seconds=3600),
        driver_dir=str(tmp_path),
        records=(),
        exclusive={"GPU-1": None},
        inhabited_at=0.0,
        find_node=lambda: None,
    )
    audit = Audit(state)
    audit.start()
    asked.wait()
    state.exclusive, state.inhabited_at = {}, time.monotonic()
    child.wait()  # the limit on a test's time ends this
    audit.close()
