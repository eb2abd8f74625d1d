"""A hostile image neither reaches the host nor runs its code there (REL-4)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.containers import images
from lab.machine.node import share

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle, Docker
    from lab.machine.node import Node

pytestmark = pytest.mark.system
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def _with_glibc(root: Path) -> Path:
    """The image's library folder; a C library in it makes it one that the driver goes to."""
    folder = root / LIBRARIES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libc.so.6").write_text("")
    return folder


def _symlink(name: str) -> Callable[[Path, Path], None]:
    def prepare(root: Path, victim: Path) -> None:
        (_with_glibc(root) / name).symlink_to("../" * 12 + str(victim / "file").lstrip("/"))

    return prepare


def _linked_folder(path: str) -> Callable[[Path, Path], None]:
    def prepare(root: Path, victim: Path) -> None:
        shutil.rmtree(root / path, ignore_errors=True)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to("../" * 12 + str(victim).lstrip("/"))

    return prepare


def _loop(root: Path, _victim: Path) -> None:
    (root / "usr/lib").mkdir(parents=True)
    (root / LIBRARIES).symlink_to("x86_64-linux-gnu")


def _fifo(root: Path, _victim: Path) -> None:
    os.mkfifo(_with_glibc(root) / "libcuda.so.1")


def _folder(root: Path, _victim: Path) -> None:
    (_with_glibc(root) / "libcuda.so.1").mkdir()


def _file_for_folder(root: Path, _victim: Path) -> None:
    (root / "usr/lib").mkdir(parents=True)
    (root / LIBRARIES).write_text("not a folder\n")


CAPPED = ["ls", "/dev/cgpu/limits"]  # fails in a container without limits
RUNS = ""
LINK = "the image has a symbolic link"
NOT_A_FILE = "which is not a file"
# name: (how the image is prepared, what its refusal says)
TRAPS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "link at the driver library": (_symlink("libcuda.so.1"), LINK),
    "link at the management library": (_symlink("libnvidia-ml.so.1"), LINK),
    "link at the versioned library": (_symlink("libcuda.so.535.0"), RUNS),
    "linked library folder": (_linked_folder(LIBRARIES), RUNS),
    "linked usr": (_linked_folder("usr"), RUNS),
    "linked dev": (_linked_folder("dev"), "/dev of the container's own"),
    "loop of links": (_loop, RUNS),
    "fifo at the driver library": (_fifo, NOT_A_FILE),
    "folder at the driver library": (_folder, NOT_A_FILE),
    "file for the library folder": (_file_for_folder, RUNS),
}


@pytest.fixture
def victim(enclosure: Enclosure) -> Path:
    """A folder of the host that must stay as it is."""
    folder = enclosure.base / "victim"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "file").write_text("of the host\n")
    (folder / "libc.so.6").write_text("")
    return folder


def _contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {str(p): (p.lstat().st_mode, p.read_text()) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_links_of_an_image_do_not_lead_to_the_host(
    bundle: Callable[[Path], Bundle],
    small_root: Path,
    node: Node,
    victim: Path,
    trap: str,
    runtime: str,
) -> None:
    """REL-4: it is refused, or it runs with nothing mounted there; nothing of the host changes."""
    hostile = bundle(small_root)
    prepare, refusal = TRAPS[trap]
    prepare(hostile.seen_from_here(), victim)
    before = _contents(victim), sorted(victim.iterdir()), hostile.enclosure.mounts()
    done = hostile.run(
        node.command(shutil.which(runtime) or runtime), *CAPPED, env=share(6), check=False
    )
    assert (_contents(victim), sorted(victim.iterdir()), hostile.enclosure.mounts()) == before
    assert (done.returncode == 0) == (refusal == RUNS), done.stderr
    assert refusal in done.stderr
    assert node.containers() == []


@pytest.fixture(scope="module")
def marker(enclosure: Enclosure) -> tuple[Path, Path]:
    """A library, and the file that it makes on the host where the host loads it."""
    library, mark = enclosure.base / "hostile.so", enclosure.base / "mark"
    define = f'-DCGPU_TEST_MARK="{mark}"'
    source = images.PROGRAMS / "hostile.c"
    subprocess.run(["gcc", "-shared", "-fPIC", define, "-o", library, source], check=True)
    enclosure.run("env", f"LD_PRELOAD={library}", "true")
    assert mark.exists(), "the trap works"
    mark.unlink()
    return library, mark


def test_libraries_that_an_image_preloads_are_not_loaded_on_the_host(
    docker: Docker, debian: str, marker: tuple[Path, Path], node: Node
) -> None:
    """REL-4, and the class of CVE-2025-23266: LD_PRELOAD relative to the hook's directory."""
    library, mark = marker
    context = mark.parent / "hostile-image"
    (context / "etc").mkdir(parents=True, exist_ok=True)
    shutil.copy(library, context / "x.so")
    (context / "etc/ld.so.preload").write_text("/x.so\n")
    name = docker.docker("create", "--network=none", debian, "true").stdout.strip()
    docker.docker("cp", f"{context}/.", f"{name}:/")
    docker.docker(
        "commit",
        "--change=ENV LD_PRELOAD=/proc/self/cwd/x.so LD_LIBRARY_PATH=/ PYTHONPATH=/ PYTHONHOME=/",
        name,
        "hostile",
    )
    docker.docker("rm", name)
    docker.run("hostile", *CAPPED, options=["--runtime=cgpu"], env=share(6))
    assert not mark.exists()
    assert node.containers() == []


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "cut short": b'{"process": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=6"',
    "not an object": b'["ALIYUN_COM_GPU_MEM_CONTAINER=6"]',
    "env of numbers": b'{"process":{"env":[6,"ALIYUN_COM_GPU_MEM_CONTAINER=6"]}}',
    "no process": b'{"root":{"path":"ALIYUN_COM_GPU_MEM_CONTAINER=6"}}',
    "deep": b'{"ALIYUN_COM_GPU_MEM_CONTAINER=6":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not UTF-8": b'{"process":{"env":["ALIYUN_COM_GPU_MEM_CONTAINER=6\xff\xfe"]}}',
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_configuration_is_refused(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node, case: str
) -> None:
    """REL-4, REL-1."""
    broken = bundle(small_root)
    (broken.path / "config.json").write_bytes(BROKEN[case])
    done = broken.start(node.command(), check=False)
    assert done.returncode != 0
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert node.containers() == []


def test_a_giant_configuration_is_refused(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node
) -> None:
    """REL-4: 64 MB of annotations do not make a container without limits."""
    giant = bundle(small_root)

    def change(config: dict[str, object]) -> None:
        config["annotations"] = {"filler": "x" * (64 << 20)}

    giant.configure(change)
    done = giant.run(node.command(), "ls", "/dev/cgpu", env=share(6), check=False)
    assert done.returncode != 0
    assert "larger than 16 MiB" in done.stderr
    assert node.containers() == []
