"""REL-6: if an image or a node brings its own driver, the loader still finds ours, or none.

The layouts are those of public images: NVIDIA's frameworks (``compat/lib.real``, linked by their
entry point, in the cache under a name that is gone when the image is done), NVIDIA's CUDA images
(``cuda-compat-12-x``), and nodes whose device plugin mounts a directory at ``/usr/local/nvidia``.
The programs in them are real: glibc's loader, its cache, and a program that opens the libraries.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_node.facts import node as node_facts
from lab.driver.cuda_base import PROGRAMS, compile_c
from lab.worlds.hook import LIBDIR, SIX, World, low_level, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

LOADER, LIBRARIES = "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu"
NEEDED = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1")
NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
COMPAT = "usr/local/cuda-12.4/compat"
NGC_PATH = (
    "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
)
CUDA_PATH = "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"


class Brought(NamedTuple):
    """An image under construction."""

    root: Path
    driver: Path
    host: Path

    def put(self, folder: str, name: str = "libcuda.so", version: str = "550.54.15") -> None:
        """A library with its links, as packages install them."""
        self.put_at(self.root / folder, name, version)

    def put_at(self, folder: Path, name: str, version: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.driver, folder / f"{name}.{version}")
        (folder / f"{name}.1").symlink_to(f"{name}.{version}")
        (folder / name).symlink_to(f"{name}.1")

    def link(self, path: str, target: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def ldconfig(self, form: str = "new") -> None:
        if not (self.root / "etc/ld.so.conf").exists():
            self.write("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
        command = ["/sbin/ldconfig", "-r", self.root, "-c", form]
        subprocess.run(command, check=True, capture_output=True)


class Layout(NamedTuple):
    """One image: how it is made, its environment, what the node mounts, what its start does."""

    make: Callable[[Brought], None]
    env: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    entrypoint: str = ""


def linked(image: Brought) -> None:
    """PyTorch, TensorFlow, Triton: the compatibility driver behind a link, and in the cache."""
    image.put(f"{COMPAT}/lib.real")
    image.link("usr/local/cuda", "/usr/local/cuda-12.4")
    image.link(f"{COMPAT}/lib", "lib.real")
    image.write("etc/ld.so.conf.d/00-cuda-compat.conf", "/usr/local/cuda/compat/lib\n")
    image.ldconfig()


def ngc(image: Brought) -> None:
    """As published: the link is removed at the end, and the entry point makes it again."""
    linked(image)
    (image.root / COMPAT / "lib").unlink()


def cuda(image: Brought) -> None:
    """nvidia/cuda: the package's own place."""
    image.put(COMPAT)
    image.link("usr/local/cuda", "/etc/alternatives/cuda")
    image.link("etc/alternatives/cuda", "/usr/local/cuda-12.4")
    image.write("etc/ld.so.conf.d/nvidia.conf", "/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n")
    image.ldconfig()


def cached(form: str) -> Callable[[Brought], None]:
    def make(image: Brought) -> None:
        image.put("opt/driver")
        image.put("opt/driver", "libnvidia-ml.so")
        image.write("etc/ld.so.conf.d/000.conf", "/opt/driver\n")
        image.ldconfig(form)

    return make


def configured(image: Brought) -> None:
    """A directory that is not in the cache yet."""
    image.put("opt/driver")
    image.write("etc/ld.so.conf", "include ld.so.conf.d/*.conf\n")
    image.write("etc/ld.so.conf.d/000.conf", "# a driver\n/opt/driver/ # here\n")
    shutil.copy("/sbin/ldconfig", image.root / "bin/ldconfig")


def node(image: Brought) -> None:
    """A device plugin's: libraries below ``lib64`` of a directory of the node."""
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-opencl.so"):
        image.put_at(image.host / "nvidia/lib64", name, "535.183.01")
    image.write("etc/ld.so.conf.d/nvidia.conf", "/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n")
    image.ldconfig()


def hardware(image: Brought) -> None:
    image.put("opt/lib/glibc-hwcaps/x86-64-v2")
    image.put(f"{LIBDIR[1:]}/glibc-hwcaps/x86-64-v2", "libnvidia-ml.so")


LAYOUTS = {
    "ngc": Layout(linked, (NGC_PATH,)),
    "ngc, found by the cache": Layout(linked),
    "ngc, its entry point has run": Layout(
        ngc, (NGC_PATH,), (), f"busybox ln -s /{COMPAT}/lib.real /{COMPAT}/lib"
    ),
    "ngc, the path is set while it runs": Layout(
        ngc, (), (), "export LD_LIBRARY_PATH=/usr/local/cuda/compat/lib.real"
    ),
    "cuda, compat on the path": Layout(cuda, ("LD_LIBRARY_PATH=/usr/local/cuda/compat",)),
    "in the cache": Layout(cached("new")),
    "in the cache of both formats": Layout(cached("compat")),
    "in the cache of the old format": Layout(cached("old")),
    "in the cache when it has started": Layout(configured, (), (), "ldconfig"),
    "node": Layout(node, (CUDA_PATH,), (("nvidia", "/usr/local/nvidia"),)),
    "node, the path is set while it runs": Layout(
        node, (), (("nvidia", "/usr/local/nvidia"),),
        "export LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
    ),
    "node, mounted elsewhere": Layout(
        node, (), (("nvidia", "/mnt/drv"),), "export LD_LIBRARY_PATH=/mnt/drv/lib64"
    ),
    "a path through links": Layout(
        lambda image: (image.put("srv/x"), image.link("opt/a", "../srv/./x")),  # type: ignore[arg-type,return-value]
        ("LD_LIBRARY_PATH=/nowhere::/opt/../opt/a/",),
    ),
    "a path below the working directory": Layout(
        lambda image: image.put("tmp/libs"), ("LD_LIBRARY_PATH=../tmp/libs",)
    ),
    "a path with words of the loader": Layout(
        lambda image: image.put("opt/lib/x86_64-linux-gnu"), ("LD_LIBRARY_PATH=/opt/$LIB:/x",)
    ),
    "a path beside the program": Layout(
        lambda image: image.put("drv"), ("LD_LIBRARY_PATH=$ORIGIN/../drv",)
    ),
    "a path beside a program that the first one starts": Layout(
        lambda image: image.put("opt/app/drv"),
        ("LD_LIBRARY_PATH=${ORIGIN}/../drv",),
        (),
        "busybox mkdir -p /opt/app/bin; busybox cp /bin/which-driver /opt/app/bin;"
        " PATH=/opt/app/bin:$PATH",
    ),
    "directories of the processor": Layout(hardware, ("LD_LIBRARY_PATH=/opt/lib",)),
    "loaded before all others": Layout(
        lambda image: image.put("opt/x"), ("LD_PRELOAD=/opt/x/libcuda.so.1",)
    ),
    "loaded before all others, by a relative path": Layout(
        lambda image: image.put("root/x"), ("LD_PRELOAD=x/libcuda.so.1",)
    ),
    "loaded before all others, by another name": Layout(
        lambda image: image.put("opt/x", "driver"), ("LD_PRELOAD=/opt/x/driver.550.54.15",)
    ),
    "a path through the root of a process": Layout(
        lambda image: image.put("opt/x"), ("LD_LIBRARY_PATH=/proc/self/root/opt/x",)
    ),
    "a path through another's": Layout(
        lambda image: image.put("opt/x"), ("LD_LIBRARY_PATH=/proc/1/root/proc/1/cwd/../opt/x",)
    ),
    "loaded before all others, by the image": Layout(
        lambda image: (image.put("opt/x"), image.write("etc/ld.so.preload", "/opt/x/libcuda.so.1"))  # type: ignore[arg-type,return-value]
    ),
}  # fmt: skip


@pytest.fixture(name="compiled", scope="module")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("programs")
    program = compile_c(PROGRAMS / "which_driver.c", folder / "which", "-ldl")
    (folder / "nothing.c").write_text("int nothing_in_it;\n")
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    driver = compile_c(PROGRAMS / "drivers" / "brought_driver.c", folder / "driver", *flags)
    return program, driver, compile_c(folder / "nothing.c", folder / "nodes", *flags)


@pytest.fixture(name="world")
def _world(tmp_path: Path, compiled: tuple[Path, Path, Path]) -> World:
    """A root with a real loader in it; the node's driver is a library with nothing in it."""
    world = World(tmp_path / "world")
    for name in node_facts.driver.PROXIED:
        shutil.copy(compiled[2], world.driver / name)
    world.write_facts()
    for path in (LOADER, *(f"{LIBRARIES}/{name}" for name in NEEDED)):
        target = world.rootfs / f"usr{path}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("lib", "lib64"):
        (world.rootfs / name).symlink_to(f"usr/{name}")
    shutil.copy(compiled[0], world.rootfs / "bin/which-driver")
    (world.rootfs / "root").mkdir()
    return world


def image(world: World, compiled: tuple[Path, Path, Path]) -> Brought:
    host = world.folder / "host"
    host.mkdir()
    return Brought(world.rootfs, compiled[1], host)


def configure(world: World, layout: Layout, command: str, env: list[str]) -> None:
    start = f"{layout.entrypoint}; " if layout.entrypoint else ""
    world.write_config([*env, *layout.env], start + command)
    config = world.edited()
    config["process"]["cwd"] = "/root"
    config["mounts"] += [bind(world.folder / "host" / name, place) for name, place in layout.mounts]
    world.write_config(process=config["process"], mounts=config["mounts"])


def bind(source: Path, place: str, *options: str) -> dict[str, Any]:
    return {
        "destination": place, "type": "bind", "source": str(source),
        "options": ["rbind", "ro", *(options or ("rprivate",))],
    }  # fmt: skip


def loaded(world: World, env: list[str], layout: Layout) -> dict[str, str]:
    """Library -> whose the loader finds."""
    configure(world, layout, f"which-driver {' '.join(NAMES)}", env)
    done = world.runtime("run", "c1", lowlevel=low_level("runc", world.folder))
    assert done.returncode == 0, done
    return dict(line.split() for line in done.stdout.splitlines())  # type: ignore[misc]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_rel_6_the_images_loader_finds_no_driver_but_ours(
    world: World, compiled: tuple[Path, Path, Path], layout: Layout
) -> None:
    layout.make(image(world, compiled))
    before = loaded(world, ["CGPU_DISABLE=1"], layout)
    assert "brought" in before.values(), "the loader does find it where nothing is covered"
    if "ln -s" in layout.entrypoint:
        (world.rootfs / COMPAT / "lib").unlink()
    if layout.make is configured:
        (world.rootfs / "etc/ld.so.cache").unlink()
    after = loaded(world, SIX, layout)
    assert after == dict.fromkeys(NAMES, "ours")


def test_an_image_without_a_driver_finds_ours_by_the_names_without_a_version_too(
    world: World,
) -> None:
    """As IREE and Halide do."""
    layout = Layout(lambda _: None)
    assert set(loaded(world, ["CGPU_DISABLE=1"], layout).values()) == {"none"}
    assert loaded(world, SIX, layout) == dict.fromkeys(NAMES, "ours")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_covering_a_nodes_directory_changes_nothing_on_the_node(
    world: World, compiled: tuple[Path, Path, Path], runtime: str
) -> None:
    layout = LAYOUTS["node"]
    layout.make(image(world, compiled))
    before = snapshot(world.folder / "host")
    configure(world, layout, "busybox cat /proc/self/mountinfo", SIX)
    done = world.runtime("run", "c1", lowlevel=low_level(runtime, world.folder))
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-opencl.so"):
        assert f" /usr/local/nvidia/lib64/{name}.535.183.01 " in done.stdout, done
    assert snapshot(world.folder / "host") == before


@pytest.mark.parametrize("options", [("rshared",), ("shared",), ()])
def test_a_nodes_directory_that_is_shared_with_the_node_is_refused(
    world: World, compiled: tuple[Path, Path, Path], options: tuple[str, ...]
) -> None:
    """What covers a library there would cover it on the node."""
    node(image(world, compiled))
    world.write_config()
    config = world.edited()
    mount = bind(world.folder / "host/nvidia", "/usr/local/nvidia", *options)
    mount["options"] = ["rbind", *options]
    config["linux"]["rootfsPropagation"] = "" if options else "rshared"
    world.write_config(mounts=[*config["mounts"], mount], linux=config["linux"])
    done = world.runtime("create", "c1", lowlevel=world.stub())
    assert done.returncode == 1
    assert "is shared with the host" in done.stderr
    assert world.shares() == []


def test_a_file_system_that_cannot_be_looked_into_is_refused_where_the_loader_looks(
    world: World,
) -> None:
    overlay = {"destination": "/usr/local/nvidia", "type": "overlay", "source": "overlay"}
    for env, refused in (([CUDA_PATH], True), ([], True)):
        world.write_config([*SIX, *env])
        world.write_config([*SIX, *env], mounts=[*world.edited()["mounts"], overlay])
        done = world.runtime("create", "c1", lowlevel=world.stub())
        assert ("cannot be seen" in done.stderr) is refused, done
    overlay["destination"] = "/data"
    world.write_config()
    world.write_config(mounts=[*world.edited()["mounts"], overlay])
    assert world.runtime("create", "c1", lowlevel=world.stub()).returncode == 0
