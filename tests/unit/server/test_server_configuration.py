"""A server follows its configuration while it runs, and says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from cgpu_node.shares.registry import Registry
from cgpu_server.state import server_state
from cgpu_server.state.arbiters import Arbiters
from cgpu_server.state.server_state import ServerState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cgpu_native.arbitration import Arbitration

pytestmark = pytest.mark.unit


def _start(**_: int) -> Arbitration:
    raise AssertionError("no GPU has containers")


def _join(_: Sequence[Arbitration]) -> None:
    raise AssertionError("no GPU has containers")


def test_a_wrong_configuration_is_logged_and_so_is_its_mending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also that it is gone; what holds from the beginning is no event."""
    path = tmp_path / "config.toml"
    monkeypatch.setattr(server_state, "CONFIG_PATH", str(path))
    caplog.set_level(logging.INFO, "cgpud")
    state = ServerState(Registry(str(tmp_path)), Arbiters(_start, _join))
    steps = (None, "[node]\nmax_inst = 9\n", "[node]\nmax_inst = 99\n", "[node]\nmax_inst = 8\n")
    most, logged = [], []
    for text in (*steps, None):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        caplog.clear()
        state.refresh()
        state.refresh()
        most.append(state.defaults.common.max_inst)
        logged.append([message.split()[0] for message in caplog.messages])
    assert most == [20, 9, 9, 8, 20]
    read = ["configuration_read"]
    assert logged == [[], read, ["configuration_refused"], read, read]
