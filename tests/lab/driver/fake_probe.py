"""A driver whose facts a test chooses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cgpu_node.facts import discovery, driver
from cgpu_node.facts.node import Node, load_node
from cgpu_node.settings.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MIB = 1 << 20
UUID = "GPU-00000000-1111-2222-3333-444444444444"
FACTS: dict[str, Any] = {
    "driver_version": "535.309.01",
    "gpus": [{"index": 0, "uuid": UUID, "name": "T4", "memory_bytes": 15109 * MIB, "minor": 3}],
    "lost": [],
}


class FakeDriver:
    """A driver directory, and a probe that answers as told and counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, Any] = {"facts": FACTS, "contexts": {UUID: 100 * MIB}}
        self.asked: list[str] = []
        for soname in driver.PROXIED:
            (folder / f"{soname}.535").write_bytes(b"\x7fELF library")
            (folder / soname).symlink_to(f"{soname}.535")

    def probe(self, what: str, folder: str) -> tuple[dict[str, Any] | None, str]:
        """What the driver answers, or None and why it does not."""
        assert self.folder.samefile(folder)
        self.asked.append(what)
        answer = self.answers[what]
        if isinstance(answer, str):
            return None, answer
        if what == "contexts" and "costs" not in answer:
            answer = {"costs": answer, "failed": {}, "order": [*answer]}
        return json.loads(json.dumps(answer)), ""


def fake_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """One in ``folder``, beside a state directory."""
    (folder / "driver").mkdir()
    (folder / "state").mkdir()
    made = FakeDriver(folder / "driver")
    monkeypatch.setattr(discovery, "_run_probe", made.probe)
    return made


def load(fake: FakeDriver, config: str = "", **more: Any) -> Node:
    """The facts about its node, under this configuration."""
    path = fake.folder.parent / "config.toml"
    path.write_text(config)
    state = str(fake.folder.parent / "state")
    more.setdefault("driver_dir", str(fake.folder))
    return load_node(state, config=load_config(str(path)), **more)
