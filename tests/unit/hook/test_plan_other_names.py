"""The planner covers a driver that the loader reaches by the kernel's links, or by another name."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_plan import DEBIAN, DEV, HOST_FILES, NODE, SIX, asked, bind, placed
from test_plan_brought import new_cache

import cgpu_shim
from cgpu_env import CgpuError
from cgpu_hook.plan import plan
from cgpu_node.image import elf, loader
from cgpu_node.image.rootfs import Rootfs

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.unit

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root file system with a driver in /opt/drv, and under another name in /opt/x."""
    for folder in (DEBIAN[1:], "opt/drv", "opt/x", "proc", "etc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / DEBIAN[1:] / "libc.so.6").touch()
    (tmp_path / "opt/drv/libcuda.so.1").touch()
    shutil.copy(cgpu_shim.library(CUDA), tmp_path / "opt/x/driver.so")
    return tmp_path


def covered(
    image: Path, *env: str, mounts: Iterable[dict[str, Any]] = (PROC,), complete: bool = False
) -> list[str]:
    """What is covered below /opt."""
    process = {"env": [*SIX, *env], "cwd": "/opt"}
    config = {"process": process, "mounts": [DEV, *mounts]}
    view = Rootfs(str(image), is_complete=complete)
    found = placed(plan(config, asked(config), NODE, view, HOST_FILES))
    return [path for path in found if path.startswith("/opt")]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/root/opt/drv",
        "/proc/1/root/opt/drv",
        "/proc/thread-self/root/proc/self/root/opt/drv",
        "/proc/self/task/7/root/../opt/drv",
        "/proc/self/cwd/drv",
        "/../proc/./self/cwd/../opt/drv",
    ],
)
def test_the_kernels_links_lead_where_they_lead_a_program(
    image: Path, path: str, *, complete: bool
) -> None:
    there = ["/opt/drv/libcuda.so.1"]
    assert covered(image, f"LD_LIBRARY_PATH={path}", complete=complete) == there
    assert covered(image, f"LD_PRELOAD={path}/libcuda.so.1", complete=complete) == there


def test_what_an_image_has_below_proc_does_not_count(image: Path) -> None:
    (image / "proc/self/root/opt/drv").mkdir(parents=True)
    assert covered(image, "LD_LIBRARY_PATH=/proc/self/root/opt/drv") == ["/opt/drv/libcuda.so.1"]


def test_processes_may_be_shown_elsewhere_too(image: Path) -> None:
    path = "LD_LIBRARY_PATH=/host/self/root/opt/drv"
    for mount in ({**PROC, "destination": "/host"}, bind("/host", "/proc")):
        assert covered(image, path, mounts=[PROC, mount]) == ["/opt/drv/libcuda.so.1"]
    assert covered(image, path) == []


@pytest.mark.parametrize(
    ("env", "preloaded"),
    [
        (["LD_PRELOAD=/opt/x/driver.so"], ""),
        (["LD_PRELOAD=libz.so:x/driver.so"], ""),
        ([], "/opt/x/driver.so\n"),
        (["LD_PRELOAD=driver.so", "LD_LIBRARY_PATH=/opt/x"], ""),
        (["LD_PRELOAD=driver.so", "LD_LIBRARY_PATH=/proc/self/cwd/x"], ""),
    ],
)
def test_a_driver_that_is_preloaded_by_another_name_is_covered(
    image: Path, env: list[str], preloaded: str
) -> None:
    (image / "etc/ld.so.preload").write_text(preloaded)
    assert covered(image, *env) == ["/opt/x/driver.so"]


def test_the_cache_may_name_any_file(image: Path) -> None:
    """Whatever the file's own name, and whether the driver is needed or preloaded."""
    (image / "opt/x/other").touch()
    (image / "etc/ld.so.cache").write_bytes(
        new_cache({CUDA: "/opt/x/other", "driver.so": "/opt/x/driver.so"})
    )
    assert covered(image, "LD_PRELOAD=driver.so") == ["/opt/x/other", "/opt/x/driver.so"]
    assert covered(image) == ["/opt/x/other"]


def test_a_library_that_only_needs_a_driver_is_left_alone(image: Path) -> None:
    shutil.copy(cgpu_shim.library(NVML), image / "opt/x/nvml.so")
    for path in ("/usr/bin/env", "/bin/sh"):
        shutil.copy(path, image / "opt/x/driver.so")
        assert covered(image, "LD_PRELOAD=/opt/x/driver.so") == []
    assert covered(image, "LD_PRELOAD=/opt/x/nvml.so") == ["/opt/x/nvml.so"]


def test_rel_4_libraries_that_take_too_long_to_read_are_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_LIBRARIES", (image / "opt/x/driver.so").stat().st_size)
    assert covered(image, "LD_PRELOAD=/opt/x/driver.so /opt/x/driver.so")
    shutil.copy(image / "opt/x/driver.so", image / "opt/x/again.so")
    with pytest.raises(CgpuError, match=r"the image's /opt/x/again\.so is larger than 0 MiB"):
        covered(image, "LD_PRELOAD=/opt/x/driver.so /opt/x/again.so")


def test_a_soname_is_read_from_whatever_the_file_is() -> None:
    for name in (CUDA, NVML):
        assert elf.soname(Path(cgpu_shim.library(name)).read_bytes()) == name
    chance, whole = random.Random(1), Path(cgpu_shim.library(NVML)).read_bytes()
    for _ in range(300):
        data = bytearray(whole[: chance.randint(0, len(whole))])
        for _ in range(chance.randint(0, 40)):
            if data:
                data[chance.randrange(min(len(data), 1024))] = chance.randrange(256)
        assert len(elf.soname(bytes(data))) <= 256
