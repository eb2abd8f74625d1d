"""What cgpu get prints, whichever release's server answers (CLI-3)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_cli.commands import get
from cgpu_cli.show import look
from cgpu_env import CgpuError
from cgpu_node.view.view import Usage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

NEW: dict[str, Any] = {"index": 0, "free_bytes": 3, "cap_bytes": 7, "limit_percent": 50.0}
OLD: dict[str, Any] = {"index": 0, "free_bytes": 3, "memsize": 7, "limit_ppm": 500_000}


def line(gpu: dict[str, Any]) -> str:
    container = {"id": "a", "weight": 1, "high_priority": True, "gpus": [gpu]}
    (found,) = get._format_lines({"gpus": [], "containers": [container]})  # noqa: SLF001 (its text)
    return found


@pytest.mark.parametrize(
    ("new", "old", "shown"),
    [
        ((25.04, None), (250_400, None, True), "25.0%"),
        ((None, 31.2), (0, 312_000, False), "~31%"),
        ((None, None), (0, None, False), "-"),
    ],
)
def test_a_server_of_release_0_1_is_understood(
    new: tuple[float | None, float | None], old: tuple[int, int | None, bool], shown: str
) -> None:
    expected = f"a  weight=1 highprio=1  GPU 0 limit=50.0% measured={shown} memsize=7 free=3"
    names = ("measured_percent", "estimated_percent")
    assert line({**NEW, **dict(zip(names, new, strict=True))}) == expected
    names = ("measured_ppm", "estimated_ppm", "metered")
    assert line({**OLD, **dict(zip(names, old, strict=True))}) == expected


def test_a_wrong_configuration_is_named_beside_what_a_server_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """CLI-3: by cgpu-smi and cgpu top as by cgpu get."""

    def wrong() -> None:
        raise CgpuError("/etc/cgpu/config.toml: policy = 9: expected 0 to 6")

    monkeypatch.setattr("cgpu_node.settings.config.load_config", wrong)
    usage = Usage("535.0", "/nowhere", (), ())
    monkeypatch.setattr(look, "send_request", lambda *_: usage.as_json())
    monkeypatch.setattr(get, "ask_server", lambda *_: {"value": "6"})
    get.Get().run(argparse.Namespace(target="0/policy", json=False))
    output = capsys.readouterr()
    assert output.out == "6\n"
    [note] = look.query_usage(str(tmp_path), None).notes
    assert note.startswith("/etc/cgpu/config.toml: policy = 9: expected 0 to 6; cgpud goes by")
    assert output.err == f"cgpu: note: {note}\n"
