"""The driver is found through a CDI specification, in JSON or as nvidia-ctk writes YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cgpu_env import CgpuError
from cgpu_node.facts import cdi, driver

pytestmark = pytest.mark.unit


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in driver.PROXIED:
        (folder / name).write_text("")
    places = tuple(str(tmp_path / name) for name in ("nvidia.json", "nvidia.yaml"))
    monkeypatch.setattr(cdi, "SPECIFICATIONS", places)
    monkeypatch.setattr(driver, "SEARCHED", ())
    return folder


def write(folder: Path, **fields: Any) -> None:
    mounts = [{"hostPath": "/x/libother.so"}, {"hostPath": str(folder / "libcuda.so.535.1")}]
    spec = {"kind": "nvidia.com/gpu", "containerEdits": {"mounts": mounts}, **fields}
    (folder.parent / "nvidia.json").write_text(json.dumps(spec))


def test_the_directory_of_libcuda_is_taken_from_the_specification(folder: Path) -> None:
    write(folder)
    assert driver.find_driver_dir() == str(folder)


def test_edits_of_single_devices_count_too(folder: Path) -> None:
    mounts = [{"hostPath": str(folder / "libcuda.so.535.1")}]
    write(folder, containerEdits=None, devices=[{"containerEdits": {"mounts": mounts}}])
    assert driver.find_driver_dir() == str(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "vendor.com/gpu"},
        {"containerEdits": []},
        {"containerEdits": {"mounts": [3]}},
        {"containerEdits": {"mounts": [{"hostPath": "libcuda.so.1"}, {"hostPath": 3}]}},
        {"containerEdits": {}, "devices": [3]},
        {"containerEdits": {"mounts": [{"hostPath": "/nowhere/libcuda.so.1"}]}},
    ],
)
def test_a_specification_that_names_no_driver_is_passed_over(
    folder: Path, fields: dict[str, Any]
) -> None:
    write(folder, **fields)
    with pytest.raises(CgpuError, match="no NVIDIA driver found"):
        driver.find_driver_dir()


@pytest.mark.parametrize("data", [b"", b"kind: nvidia.com/gpu\n", b"\xff", b"[" * 100000])
def test_a_file_that_is_not_json_is_passed_over(folder: Path, data: bytes) -> None:
    (folder.parent / "nvidia.json").write_bytes(data)
    with pytest.raises(CgpuError, match="no NVIDIA driver found"):
        driver.find_driver_dir()


YAML = """\
---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /run/nvidia-persistenced/socket
    hostPath: /run/nvidia-persistenced/socket
    options:
    - ro
  - hostPath: {quote}{folder}/libcuda.so.550.54.15{quote}
    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
kind: {kind}
"""


@pytest.mark.parametrize(("quote", "kind"), [("", "nvidia.com/gpu"), ('"', '"nvidia.com/gpu"')])
def test_a_specification_in_yaml_is_read_as_nvidia_ctk_writes_it(
    folder: Path, quote: str, kind: str
) -> None:
    text = YAML.format(folder=folder, quote=quote, kind=kind)
    (folder.parent / "nvidia.yaml").write_text(text)
    assert driver.find_driver_dir() == str(folder)


@pytest.mark.parametrize(
    ("text", "kind"),
    [(YAML, "vendor.com/gpu"), (YAML.replace("hostPath", "path"), "nvidia.com/gpu"), ("", "")],
)
def test_a_specification_in_yaml_that_names_no_driver_is_passed_over(
    folder: Path, text: str, kind: str
) -> None:
    (folder.parent / "nvidia.yaml").write_text(text.format(folder=folder, quote="", kind=kind))
    with pytest.raises(CgpuError, match="no NVIDIA driver found"):
        driver.find_driver_dir()
