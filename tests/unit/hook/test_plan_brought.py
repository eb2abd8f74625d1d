"""The planner covers every driver that the loader finds in an image or a mounted directory."""

from __future__ import annotations

import os
import random
import resource
import struct
import tracemalloc
from pathlib import Path

import pytest
from test_plan import (
    CUDA,
    DEBIAN,
    DEBIAN_IMAGE,
    DEV,
    HOST_FILES,
    JIT,
    NODE,
    NVML,
    SIX,
    asked,
    bind,
    decide,
    placed,
    plan_container,
)

from cgpu_env import CgpuError
from cgpu_node.image import ldcache, loader
from cgpu_node.image.rootfs import Rootfs

pytestmark = pytest.mark.unit

PROXY = f"/opt/cgpu/{CUDA}"
STEMS = ("libcuda.so", "libnvidia-ml.so")
NGC = {
    **DEBIAN_IMAGE,
    "/usr/local/cuda": "-> /usr/local/cuda-12.4",
    "/usr/local/cuda-12.4/compat/lib": "-> lib.real",
    "/usr/local/cuda-12.4/compat/lib.real/libcuda.so": "-> libcuda.so.1",
    "/usr/local/cuda-12.4/compat/lib.real/libcuda.so.1": "-> libcuda.so.550.54.15",
    "/usr/local/cuda-12.4/compat/lib.real/libcuda.so.550.54.15": "compat",
    "/usr/local/cuda-12.4/compat/lib.real/libnvidia-ptxjitcompiler.so.1": "-> "
    "libnvidia-ptxjitcompiler.so.550.54.15",
    "/usr/local/cuda-12.4/compat/lib.real/libnvidia-ptxjitcompiler.so.550.54.15": "compat",
}


def new_cache(entries: dict[str, str]) -> bytes:
    """A cache in the new format."""
    head = 48 + 24 * len(entries)
    table, strings = b"", b""
    for key, value in entries.items():
        at = head + len(strings)
        strings += f"{key}\0{value}\0".encode()
        table += struct.pack("<iIIIQ", 0x303, at, at + len(key) + 1, 0, 0)
    size = struct.pack("<II", len(entries), len(strings))
    return b"glibc-ld.so.cache1.1" + size + bytes(20) + table + strings


def old_cache(entries: dict[str, str]) -> bytes:
    """A cache in the old format."""
    table, strings = b"", b""
    for key, value in entries.items():
        table += struct.pack("<iII", 3, len(strings), len(strings) + len(key) + 1)
        strings += f"{key}\0{value}\0".encode()
    return b"ld.so-1.7.0\0" + struct.pack("<I", len(entries)) + table + strings


ENTRIES = {
    "libcuda.so.1": "/opt/a/libcuda.so.1",
    "libcudart.so.12": "/usr/local/cuda/lib64/libcudart.so.12",
    "libnvidia-ml.so.1": "/odd/name",
    "libz.so.1": "/lib/libz.so.1",
}
FOUND = ["/opt/a/libcuda.so.1", "/odd/name"]


@pytest.mark.parametrize("make", [new_cache, old_cache])
def test_the_cache_is_read_in_each_format(make: type) -> None:
    assert ldcache.find_by_stems(make(ENTRIES), STEMS) == FOUND
    assert ldcache.find_by_stems(make({"libz.so.1": "/lib/libz.so.1"}), STEMS) == []


def test_the_new_format_behind_the_old_one_is_read() -> None:
    old = old_cache({"libz.so.1": "/lib/libz.so.1"})
    assert ldcache.find_by_stems(old + bytes(-len(old) % 8) + new_cache(ENTRIES), STEMS) == FOUND


def test_rel_4_a_damaged_cache_leads_nowhere_and_to_no_error() -> None:
    chance = random.Random(1)
    for make in (new_cache, old_cache):
        whole = make(ENTRIES)
        for _ in range(2000):
            data = bytearray(whole[: chance.randint(0, len(whole))])
            for _ in range(chance.randint(0, 8)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            assert all(path.startswith("/") for path in ldcache.find_by_stems(bytes(data), STEMS))


def test_the_compatibility_driver_is_covered_where_its_files_are() -> None:
    result = decide(NGC)
    real = "/usr/local/cuda-12.4/compat/lib.real"
    assert placed(result)[f"{real}/libcuda.so.550.54.15"] == PROXY
    assert placed(result)[f"{real}/libnvidia-ptxjitcompiler.so.550.54.15"] == NODE.companions[JIT]
    assert placed(result)[f"{DEBIAN}/{CUDA}"] == PROXY
    assert result.masks == ()


def test_every_version_in_a_directory_is_covered() -> None:
    image = {**DEBIAN_IMAGE, "/opt/x/libcuda.so.550.1": "a", "/opt/x/libcuda.so": "b"}
    result = placed(decide(image, [*SIX, "LD_LIBRARY_PATH=/opt/x"]))
    assert {d for d in result if d.startswith("/opt/x")} == {
        "/opt/x/libcuda.so.550.1",
        "/opt/x/libcuda.so",
    }


def test_what_the_loader_does_not_find_is_left_alone() -> None:
    image = {**DEBIAN_IMAGE, "/opt/x/libcuda.so.1": "a", "/opt/y/libcudart.so.12": "b"}
    result = placed(decide(image, [*SIX, "LD_LIBRARY_PATH=/opt/y"]))
    assert not [d for d in result if d.startswith("/opt")]


def test_a_mounted_directory_is_looked_into_on_the_host() -> None:
    host = {
        "/home/kubernetes/bin/nvidia/lib64/libcuda.so.1": "-> libcuda.so.535.1",
        "/home/kubernetes/bin/nvidia/lib64/libcuda.so.535.1": "real",
    }
    mounts = [bind("/usr/local/nvidia", "/home/kubernetes/bin/nvidia")]
    result = placed(decide(mounts=mounts, host=host))
    assert result["/usr/local/nvidia/lib64/libcuda.so.535.1"] == PROXY
    assert result[f"{DEBIAN}/{CUDA}"] == PROXY


def test_a_mount_hides_what_the_image_has_there() -> None:
    image = {**DEBIAN_IMAGE, "/usr/local/nvidia/lib64/libcuda.so.1": "image"}
    tmpfs = {"destination": "/usr/local/nvidia", "type": "tmpfs", "source": "tmpfs"}
    assert not [d for d in placed(decide(image, mounts=[tmpfs])) if "/nvidia/" in d]
    copied = {**tmpfs, "options": ["tmpcopyup"]}
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in placed(decide(image, mounts=[copied]))


def test_links_in_a_mounted_directory_are_followed_in_the_container() -> None:
    host = {"/drv/lib64/libcuda.so.1": "-> /opt/real/libcuda.so.5"}
    image = {**DEBIAN_IMAGE, "/opt/real/libcuda.so.5": "x"}
    result = placed(decide(image, mounts=[bind("/mnt/d", "/drv")], host=host))
    assert result["/opt/real/libcuda.so.5"] == PROXY


@pytest.mark.parametrize(
    ("env", "image", "words"),
    [
        ([":".join(f"/x{i}" for i in range(2000))], {}, "more than 1024 entries"),
        ([":".join(f"/d/{i}" for i in range(300))], {f"/d/{i}/x": "" for i in range(300)}, "256"),
        (["/many"], {f"/many/libcuda.so.{i}": "" for i in range(1100)}, "more than 1024 files"),
        (["/" + "a/" * 70], {}, "more than 64 directories"),
        (["/$LIB/$LIB-${LIB}/$PLATFORM/$PLATFORM-${PLATFORM}:/$LIB"], {}, "more than 1024 dir"),
    ],
)
def test_rel_4_more_than_can_be_looked_at_is_refused(
    tmp_path: Path, env: list[str], image: dict[str, str], words: str
) -> None:
    for path in {**DEBIAN_IMAGE, **image}:
        if path != "/lib":
            (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path[1:]).touch()
    config = {
        "process": {"env": [*SIX, f"LD_LIBRARY_PATH={env[0]}"]},
        "mounts": [DEV],
    }
    with pytest.raises(CgpuError, match=words):
        plan_container(config, asked(config), NODE, Rootfs(str(tmp_path)), HOST_FILES)


def test_rel_4_a_container_is_refused_where_no_more_files_can_be_opened(tmp_path: Path) -> None:
    """A driver that could not be seen for that would not be covered."""
    (tmp_path / "image" / DEBIAN[1:]).mkdir(parents=True)
    (tmp_path / "image" / DEBIAN[1:] / "libc.so.6").touch()
    mounts = []
    for i in range(40):
        library = tmp_path / f"{i}" / "lib64" / CUDA
        library.parent.mkdir(parents=True)
        library.touch()
        mounts.append(bind(f"/opt/{i}", str(tmp_path / f"{i}")))
    config = {"process": {"env": SIX}, "mounts": [DEV, *mounts]}

    def planned() -> dict[str, str]:
        return placed(
            plan_container(config, asked(config), NODE, Rootfs(str(tmp_path / "image")), HOST_FILES)
        )

    assert len([path for path in planned() if path.startswith("/opt/")]) == 40
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    for most in (free, free + 10, free + 60):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        try:
            with pytest.raises(CgpuError, match="Too many open files"):
                planned()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_rel_4_loops_dangling_links_and_odd_files_are_passed_over() -> None:
    image = {
        **DEBIAN_IMAGE,
        "/opt/x/libcuda.so": "-> libcuda.so",
        "/opt/x/libcuda.so.1": "-> ../../../../missing/libcuda.so.1",
        "/opt/x/libcuda.so.2": "!",
        "/opt/x/libcuda.so.3/file": "x",
        "/usr/local/cuda": "-> cuda",
        "/etc/ld.so.cache": "-> ld.so.cache",
    }
    result = placed(decide(image, [*SIX, "LD_LIBRARY_PATH=/opt/x"]))
    assert not [d for d in result if d.startswith("/opt/x")]


def test_a_path_that_leads_out_of_the_image_ends_in_it() -> None:
    image = {**DEBIAN_IMAGE, "/opt/x": "-> ../../../../srv", "/srv/libcuda.so.1": "x"}
    result = placed(decide(image, [*SIX, "LD_LIBRARY_PATH=/opt/x"]))
    assert result["/srv/libcuda.so.1"] == PROXY


def test_opencl_of_a_mounted_directory_is_masked() -> None:
    host = {f"/drv/lib64/{n}": "x" for n in (CUDA, NVML, "libnvidia-opencl.so.1")}
    result = decide(mounts=[bind("/usr/local/nvidia", "/drv")], host=host)
    assert result.masks == ("/usr/local/nvidia/lib64/libnvidia-opencl.so.1",)


CONFIGURED = {
    **DEBIAN_IMAGE,
    "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf more/[a-b]?.conf\t/etc/ld.so.conf\n"
    "/opt/a=libc6",
    "/etc/ld.so.conf.d/x.conf": "-> ../../../../srv/x.conf",
    "/etc/ld.so.conf.d/y.conf": "# /opt/no\n\n  /opt/b/ # yes\nrelative\n/opt/\0/x\n/\n",
    "/etc/ld.so.conf.d/z.txt": "/opt/no",
    "/etc/more/a1.conf": "include /etc/more/*/deep/*",
    "/etc/more/x/deep/any": "/opt/d",
    "/srv/x.conf": "hwcap 0 nosegneg\n/opt/c",
    **{f"/opt/{name}/libcuda.so.1": name for name in ("a", "b", "c", "d", "no")},
    "/relative/libcuda.so.1": "x",
}


def test_a_driver_is_covered_before_ldconfig_puts_it_into_the_cache() -> None:
    result = placed(decide(CONFIGURED, process={"env": SIX, "cwd": "/"}))
    found = {path for path in result if path.endswith(CUDA) and path.count("/") < 4}
    assert found == {f"/opt/{n}/{CUDA}" for n in ("a", "b", "c", "d")} | {f"/relative/{CUDA}"}


@pytest.mark.parametrize(
    "entries",
    [
        {"/etc/ld.so.conf": "\n".join(f"/x{i}" for i in range(2000))},
        {f"/etc/ld.so.conf.d/{i}": "" for i in range(2000)},
        {"/etc/ld.so.conf": "include /nowhere\n" * 2000},
        {"/etc/ld.so.conf": "include /" + "*/../" * 40 + "*"},
        {"/etc/ld.so.conf": "include /" + "x/" * 400_000 + "*"},
        {f"/etc/ld.so.conf.d/{i}": "#" * (1 << 18) for i in range(5)},
        {"/etc/ld.so.conf": "#" * (2 << 20)},
    ],
)
def test_rel_4_a_configuration_of_the_loader_that_costs_too_much_is_refused(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    include = {"/etc/ld.so.conf": "include /etc/ld.so.conf.d/*"}
    for path, text in {f"{DEBIAN}/libc.so.6": "", **include, **entries}.items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text(text)
    config = {"process": {"env": SIX}, "mounts": [DEV]}
    with pytest.raises(CgpuError, match=r"the image's /etc/ld\.so\.conf"):
        plan_container(config, asked(config), NODE, Rootfs(str(tmp_path)), HOST_FILES)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/ld.so.conf", "include /d" + "/*" * 38),
        ("/etc/ld.so.preload", "/$LIB${LIB}$PLATFORM${PLATFORM} " * (1 << 15)),
        ("/etc/ld.so.preload", "/$LIB${LIB}$PLATFORM${PLATFORM}" * (1 << 13)),
    ],
)
def test_rel_4_what_the_loader_reads_takes_no_memory_without_bounds(
    tmp_path: Path, path: str, text: str
) -> None:
    """A pattern that matches much at each of its steps, and names that each mean 256 paths."""
    for name in (f"{DEBIAN}/libc.so.6"[1:], path[1:], *(f"d/{i}" for i in range(5000))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "d/zz").symlink_to(".")
    (tmp_path / path[1:]).write_text(text)
    config = {"process": {"env": SIX}, "mounts": [DEV]}
    tracemalloc.start()
    with pytest.raises(CgpuError, match="the image"):
        plan_container(config, asked(config), NODE, Rootfs(str(tmp_path)), HOST_FILES)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 << 20


@pytest.mark.parametrize(
    "path", ["x/libcuda.so.1", "../opt/x/libcuda.so.1", "/opt/$LIB/libcuda.so.1"]
)
def test_a_library_that_is_loaded_before_all_others_is_covered(path: str) -> None:
    image = {**DEBIAN_IMAGE, **{f"/opt/{name}/libcuda.so.1": name for name in ("x", "lib64")}}
    for env, more in (
        ([f"LD_PRELOAD=libz.so {path}"], {}),
        ([], {"/etc/ld.so.preload": f"\0 {path}"}),
    ):
        process = {"env": [*SIX, *env], "cwd": "/opt"}
        assert [d for d in placed(decide({**image, **more}, process=process)) if "/opt" in d]


ORIGINS = ("LD_LIBRARY_PATH=/x:$ORIGIN/../drv", "LD_PRELOAD=${ORIGIN}/../drv/libcuda.so.1")


@pytest.mark.parametrize("variable", ORIGINS)
def test_a_path_beside_any_program_may_lead_to_any_directory(variable: str) -> None:
    """Also in a mounted directory, and where the loader looks for other reasons."""
    image = {
        **DEBIAN_IMAGE,
        "/opt/app/drv/libcuda.so.1": "a",
        "/drv/glibc-hwcaps/app/libnvidia-ml.so.1": "b",
        "/proc/app/libcuda.so.1": "the kernel's, not looked at",
    }
    host = {"/somewhere/app/drv/libcuda.so.1": "c"}
    result = placed(decide(image, [*SIX, variable], [bind("/data")], host))
    assert {path for path in result if "/app/" in path} == {
        "/opt/app/drv/libcuda.so.1",
        "/drv/glibc-hwcaps/app/libnvidia-ml.so.1",
        "/data/app/drv/libcuda.so.1",
    }


def test_a_path_beside_the_program_refuses_no_large_image_without_a_driver(tmp_path: Path) -> None:
    for path in (f"{DEBIAN}/libc.so.6", *(f"/opt/{i % 20}/{i}/lib/x" for i in range(600))):
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).touch()
    config = {"process": {"env": [*SIX, ORIGINS[0]]}, "mounts": [DEV]}
    planned = plan_container(config, asked(config), NODE, Rootfs(str(tmp_path)), HOST_FILES)
    assert f"{DEBIAN}/{CUDA}" in placed(planned)


def test_rel_4_a_path_beside_the_program_refuses_more_than_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_ANYWHERE", 100)
    for i in range(100):
        (tmp_path / f"{i}").mkdir()
    config = {"process": {"env": [*SIX, ORIGINS[0]]}, "mounts": [DEV]}
    with pytest.raises(CgpuError, match=r"\$ORIGIN"):
        plan_container(config, asked(config), NODE, Rootfs(str(tmp_path)), HOST_FILES)
