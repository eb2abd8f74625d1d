"""A server follows its configuration while it runs, and says so."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive
from cgpu_node.shares.registry import Registry
from cgpu_server.journal import log
from cgpu_server.state import server_state
from cgpu_server.state.arbiters import Arbiters
from cgpu_server.state.server_state import ServerState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cgpu_native.arbitration import Arbitration
    from cgpu_node.settings.config import Config

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
    log.flush(everything=True)  # what tests before this one left out
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


def test_pods_with_whole_gpus_are_known_without_asking_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8S-8: it may hang, and who lives is found out each second."""

    def load_node(*_: object) -> None:
        raise AssertionError("the driver is asked")

    monkeypatch.setattr(server_state, "load_node", load_node)
    state = ServerState(Registry(str(tmp_path)), Arbiters(_start, _join))
    first, second = (Exclusive("ml", id_, "main", (id_,)) for id_ in ("0", "GPU-b"))
    exclusive.write(str(tmp_path), [first, second])
    state.refresh()
    assert state.exclusive == {}
    good, lost = {"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}
    facts = {"identity": {"version": 1}, "gpus": [good], "lost": [lost], "cuda_order": []}
    (tmp_path / "node.json").write_text(json.dumps(facts))
    state.refresh()
    assert state.exclusive == {"GPU-a": first, "GPU-b": second}


def test_facts_are_read_by_the_configuration_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-3: cgpu-smi is answered while a mistake is in the file, as cgpu get is."""
    path = tmp_path / "config.toml"
    path.write_text("[node]\nmax_inst = 9\n")
    monkeypatch.setattr(server_state, "CONFIG_PATH", str(path))
    used: list[Config] = []
    monkeypatch.setattr(server_state, "load_node", lambda *_, config, **__: used.append(config))
    state = ServerState(Registry(str(tmp_path)), Arbiters(_start, _join))
    state.refresh()
    path.write_text("[node]\nmax_inst = 99\n")
    state.refresh()
    state.known_node()
    state.adopt_driver("/nowhere")
    assert [config.max_inst for config in used] == [9] * len(used)
    assert used
