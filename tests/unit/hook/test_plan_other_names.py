"""The planner covers a driver that the loader reaches by the kernel's links, or by another name."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_plan import DEBIAN, DEV, HOST_FILES, NODE, SIX, asked, bind, placed, plan_container
from test_plan_brought import new_cache

import cgpu_shim
from cgpu_env import CgpuError
from cgpu_node.image import elf, ldcache
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
    found = placed(plan_container(config, asked(config), NODE, view, HOST_FILES))
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


@pytest.mark.parametrize("name", ["a\u00a0b.so", "a\x1fb.so", "a\u2003", "a\u2028b.so"])
def test_only_what_the_loader_separates_by_ends_a_name(image: Path, name: str) -> None:
    """Python's own words end at more: at spaces of any width, and separators of files."""
    (image / "opt/x/driver.so").rename(image / "opt/x" / name)
    assert covered(image, f"LD_PRELOAD=/opt/x/{name}") == [f"/opt/x/{name}"]
    (image / "etc/ld.so.preload").write_text(f"libz.so\t/opt/x/{name}\n")
    assert covered(image) == [f"/opt/x/{name}"]


def test_a_variable_separates_by_fewer_letters_than_the_file(image: Path) -> None:
    (image / "opt/x/driver.so").rename(image / "opt/x/a\tb.so")
    assert covered(image, "LD_PRELOAD=libz.so /opt/x/a\tb.so") == ["/opt/x/a\tb.so"]


@pytest.mark.parametrize(
    "preloaded",
    [
        "/opt/x/driver.so#old",
        "#\n#/opt/x/driver.so /opt/x/driver.so",
        "#the first remark\n#the/second/opt/x/driver.so\n",
    ],
)
def test_a_comment_ends_a_name_and_may_be_none(image: Path, preloaded: str) -> None:
    """Loaders blank out what follows the first ``#``, and lose count of further ones."""
    (image / "etc/ld.so.preload").write_text(preloaded)
    assert covered(image) == ["/opt/x/driver.so"]


@pytest.mark.parametrize("end", ["\r", "\v", "\f"])
def test_ldconfig_strips_no_name_of_a_file_that_is_included(image: Path, end: str) -> None:
    (image / "etc/ld.so.conf").write_text(f"include /etc/drv.conf{end}\n", newline="")
    (image / f"etc/drv.conf{end}").write_text("/opt/drv\n")
    assert covered(image) == ["/opt/drv/libcuda.so.1"]


@pytest.mark.parametrize("folder", ["drv\u00a0", "drv\x1f", "d\u2003rv"])
def test_ldconfig_strips_no_more_than_its_own_spaces(image: Path, folder: str) -> None:
    (image / "opt/drv").rename(image / "opt" / folder)
    (image / "etc/ld.so.conf").write_text(f"include /etc/{folder}.conf\n")
    (image / f"etc/{folder}.conf").write_text(f" \v/opt/{folder}\t\n")
    assert covered(image) == [f"/opt/{folder}/libcuda.so.1"]


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/opt/$LIBS", "$LIBS"),
        ("/opt/$LIB_/$PLATFORM1", "$LIB_/$PLATFORM1"),
        ("/opt/$LIB.d", "lib64.d"),  # of newer loaders, and of older ones:
        ("/opt/$LIB.d", "$LIB.d"),
        ("/opt/${LIB}s/$LIB", "lib64s/lib"),
        ("/opt/$LIBS/$LIB", "$LIBS/lib64"),
    ],
)
def test_a_token_ends_where_the_loader_sees_its_end(image: Path, path: str, folder: str) -> None:
    (image / "opt" / folder).mkdir(parents=True)
    (image / "opt/drv/libcuda.so.1").rename(image / "opt" / folder / CUDA)
    assert covered(image, f"LD_LIBRARY_PATH={path}") == [f"/opt/{folder}/{CUDA}"]


@pytest.mark.parametrize("folder", ["/usr/lib", "/lib", "/usr/lib64", "/lib64"])
def test_what_ldconfig_always_reads_is_searched(image: Path, folder: str) -> None:
    """Also where the image has no glibc there, and names no directory in its configuration."""
    (image / folder[1:]).mkdir(parents=True, exist_ok=True)
    (image / "opt/drv/libcuda.so.1").rename(image / folder[1:] / CUDA)
    config = {"process": {"env": SIX}, "mounts": [DEV, PROC]}
    found = placed(plan_container(config, asked(config), NODE, Rootfs(str(image)), HOST_FILES))
    assert f"{folder}/{CUDA}" in found


def test_names_that_are_no_text_are_names_too(image: Path) -> None:
    (image / "etc/ld.so.preload").write_bytes(b"\xff.so $ORIGIN/ /opt/x/driver.so")
    (image / "etc/ld.so.cache").write_bytes(new_cache({"libz.so.1": "/lib/libz.so.1"}))
    assert "/opt/x/driver.so" in covered(image)


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


def test_rel_4_more_is_preloaded_than_can_be_looked_at(image: Path) -> None:
    """Names that are nowhere count too: the loader passes over them, and goes on."""
    names = " ".join(f"n{i}" for i in range(1100))
    for path in ("/opt/x/driver.so", "driver.so"):
        with pytest.raises(CgpuError, match="name more than 1024 libraries"):
            covered(image, f"LD_PRELOAD={names} {path}", "LD_LIBRARY_PATH=/opt/x")


def test_a_library_of_any_size_is_preloaded(image: Path) -> None:
    """Such as NVIDIA's own, of which a few bytes are read."""
    with (image / "opt/x/driver.so").open("r+b") as file:
        file.truncate(1 << 34)
    with (image / "opt/x/large.so").open("wb") as file:
        file.truncate(1 << 34)
    names = "/opt/x/large.so /opt/x/driver.so"
    assert covered(image, f"LD_PRELOAD={names}") == ["/opt/x/driver.so"]


def test_a_link_to_a_library_counts_by_its_own_name(image: Path) -> None:
    (image / "opt/x/plain.so").touch()
    (image / "opt/x/libcuda.so.1").symlink_to("plain.so")
    names = "/opt/x/plain.so /opt/x/libcuda.so.1"
    assert covered(image, f"LD_PRELOAD={names}") == ["/opt/x/plain.so"]


def test_a_copy_beside_any_program_is_found_by_its_own_name(image: Path) -> None:
    assert "/opt/x/driver.so" in covered(image, "LD_PRELOAD=$ORIGIN/../x/driver.so")


def soname(data: bytes) -> str:
    read = 0

    def part(start: int, most: int) -> bytes:
        nonlocal read
        read += most
        return data[start : start + most]

    found = elf.read_soname(part)
    assert read < 1 << 17
    return found


def test_rel_4_a_soname_is_read_from_whatever_the_file_is() -> None:
    for name in (CUDA, NVML):
        assert soname(Path(cgpu_shim.library(name)).read_bytes()) == name
    chance, whole = random.Random(1), Path(cgpu_shim.library(NVML)).read_bytes()
    for _ in range(300):
        data = bytearray(whole[: chance.randint(0, len(whole))])
        for _ in range(chance.randint(0, 40)):
            if data:
                data[chance.randrange(min(len(data), 1024))] = chance.randrange(256)
        assert len(soname(bytes(data))) <= 256


def test_the_cache_is_asked_for_whole_names() -> None:
    cache = new_cache({"libfoo.so.1": "/a", "libfoo.so": "/b", "x": "/c"})
    assert ldcache.find_by_names(cache, {"libfoo.so", "y"}) == ["/b"]
    assert ldcache.find_by_names(cache, {"libfo", "a"}) == []
