"""Writing a driver directory."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from cgpu_sim import machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTAINER_DIRECTORY = "/dev/cgpu-sim"
LIBRARY_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def _node(name: str) -> dict[str, str]:
    return {"host": name, "container": f"{CONTAINER_DIRECTORY}/{name}"}


def manifest(gpu_count: int) -> dict[str, object]:
    """Contents of ``driver.json``: which files a container needs for each GPU."""
    gpus = [[_node(f"gpu{index}")] for index in range(gpu_count)]
    return {"device_nodes": {"common": [_node("machine")], "gpus": gpus}}


def make_driver_dir(
    path: Path,
    gpus: Sequence[machine.Gpu] = (machine.TESLA_T4,),
    *,
    cuda_version: int = 12040,
    driver_version: str = "550.163.01",
    switch_us: int = 50,
    dispatch_us: int = 0,
    completion_us: int = 0,
    in_order: bool = False,
) -> Path:
    """Make ``path`` a driver directory of a machine with ``gpus``, and return it.

    Turning from one process to another costs a GPU ``switch_us``. A launch begins ``dispatch_us``
    after it was made at the earliest, and an end is seen ``completion_us`` after it. ``in_order``:
    kernels of all processes run one after the other, in the order in which they were launched,
    instead of taking turns. A directory that is there already gets a new machine; programs that
    run keep the old one.
    """
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    for name in LIBRARY_NAMES:
        source = machine.LIBRARIES / name
        if source.exists():
            _replace(source, path / name)
    compute = {"switch_us": switch_us, "dispatch_us": dispatch_us, "completion_us": completion_us}
    compute["in_order"] = int(in_order)
    machine.create(path / "machine", gpus, cuda_version, driver_version, compute)
    for index in range(len(gpus)):
        node = path / f"gpu{index}"
        node.touch()
        node.chmod(0o666)
    (path / "driver.json").write_text(json.dumps(manifest(len(gpus)), indent=2) + "\n")
    return path


def _replace(source: Path, target: Path) -> None:
    """Copy such that programs which have the old file mapped keep it."""
    temporary = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o755)
    temporary.rename(target)
