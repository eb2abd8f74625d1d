"""Containers of the real runc and crun, through cgpu-runtime."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import cgpu_native
from lab.worlds.hook import BIN, LIBDIR, MIB, SIX, World, low_level, snapshot

pytestmark = pytest.mark.integration
SHOW_MOUNTS = "busybox cat /proc/self/mountinfo"


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture(name="runtime", params=["runc", "crun"])
def _runtime(request: pytest.FixtureRequest, world: World) -> Path:
    return low_level(request.param, world.folder)


def name() -> str:
    return f"cgpu-test-{secrets.token_hex(4)}"


def mounts_at(mountinfo: str) -> dict[str, str]:
    """Mount point -> its options, of the last mount there."""
    return {line.split()[4]: line.split()[5] for line in mountinfo.splitlines()}


def test_a_container_sees_its_share_and_the_proxies(world: World, runtime: Path) -> None:
    world.write_config(command=f"{SHOW_MOUNTS}; busybox cat {LIBDIR}/libcuda.so.1 > /tmp/seen")
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.returncode == 0, done
    mounts = mounts_at(done.stdout)
    assert mounts["/dev/cgpu/limits"].startswith("ro,nosuid,nodev,noexec")
    assert mounts["/dev/cgpu/ledger"].startswith("rw,nosuid,nodev,noexec")
    for path in ("/dev/cgpu/real/libcuda.so.1", f"{LIBDIR}/libcuda.so.1", "/usr/bin/nvidia-smi"):
        assert mounts[path].startswith("ro,nosuid,nodev,"), path
        assert "noexec" not in mounts[path]
    proxy = BIN.parents[2] / "shim" / "cgpu_shim" / "_lib" / "libcuda.so.1"
    assert (world.rootfs / "tmp" / "seen").read_bytes() == proxy.read_bytes()


def test_the_limits_page_says_what_was_asked_for(world: World, runtime: Path) -> None:
    visible = "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"
    world.write_config([*SIX, visible], "busybox cat /dev/cgpu/limits > /tmp/limits")
    container = name()
    assert world.runtime("run", container, lowlevel=runtime).returncode == 0
    limits = cgpu_native.unpack_limits((world.rootfs / "tmp" / "limits").read_bytes())
    assert limits.id == container
    assert [(g.index, g.cap_bytes, g.total_bytes) for g in limits.gpus] == [
        (1, 6337173913, 15109 * MIB)
    ]


@pytest.mark.parametrize("env", [SIX, []])
def test_a_configuration_that_is_a_link_is_as_good_as_a_file(
    world: World, runtime: Path, env: list[str]
) -> None:
    """For the low-level runtimes it is; the share does not go where the link leads."""
    world.write_config(env, "busybox ls /dev")
    template = world.folder / "template.json"
    world.config.rename(template)
    world.config.symlink_to(template)
    before = template.read_text()
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.returncode == 0, done
    assert ("cgpu" in done.stdout.split()) == bool(env)
    assert template.read_text() == before
    assert world.config.is_symlink() == (not env)


RENAME = (
    "for it in /dev/cgpu /dev/cgpu/real /dev/cgpu/limits; do busybox mv $it /dev/away"
    " && echo $it is gone; done; busybox mkdir /dev/cgpu/new; busybox ls /dev/cgpu"
)


def test_rel_6_root_can_put_nothing_in_the_place_of_its_limits(world: World, runtime: Path) -> None:
    """REL-6: a renamed folder could be replaced with one that has other limits."""
    world.write_config(command=RENAME)
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.stdout.split() == ["ledger", "limits", "real"], done


def test_rel_6_a_volume_that_changes_meanwhile_leads_no_limits_astray(
    world: World, runtime: Path
) -> None:
    """Another container changes a link in a volume, through which a second volume is mounted."""
    volume, target = world.folder / "volume", world.folder / "target"
    (volume / "place" / "cgpu").mkdir(parents=True)
    target.mkdir()
    mounts = [
        {"destination": to, "type": "bind", "source": str(source), "options": ["bind", "rw"]}
        for to, source in (("/mnt", volume), ("/mnt/place/cgpu", target))
    ]
    world.write_config()
    world.write_config(
        command="busybox ls /dev/cgpu; busybox mount", mounts=[*world.edited()["mounts"], *mounts]
    )
    changing = world.folder / "changing"
    changing.write_text(
        f'#!/bin/sh\nrm -r {volume}/place; ln -s /dev {volume}/place; exec {runtime} "$@"\n'
    )
    changing.chmod(0o755)
    done = world.runtime("run", name(), lowlevel=changing)
    assert done.stdout.split()[:3] == ["ledger", "limits", "real"], done
    assert list(target.iterdir()) == []


def test_rel_5_only_the_granted_gpu_is_there_and_limits_cannot_be_written(
    world: World, runtime: Path
) -> None:
    world.write_config(
        [*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"],
        "busybox ls /dev/cgpu-sim; echo x > /dev/cgpu/limits; echo $?; busybox rm /dev/cgpu/limits",
    )
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.stdout.split() == ["gpu1", "machine", "1"]
    assert "Read-only" in done.stderr


def test_rel_3_after_the_container_nothing_is_left(world: World, runtime: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    world.write_config()
    for _ in range(2):  # a bundle may be run again
        assert world.runtime("run", name(), lowlevel=runtime).returncode == 0
        assert world.shares() == []
    assert Path("/proc/self/mountinfo").read_text() == before


def test_rel_3_a_container_killed_with_9_gives_its_share_back(world: World, runtime: Path) -> None:
    world.write_config(command="busybox sleep 100")
    container = name()
    options = [*world.options(runtime), "run", container]
    with subprocess.Popen(
        [str(BIN / "cgpu-runtime"), *options], cwd=world.bundle, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 30
        pid = 0
        while pid <= 0 and time.monotonic() < deadline:
            state = world.runtime("state", container, lowlevel=runtime)
            running = '"running"' in state.stdout
            pid = int(state.stdout.split('"pid": ')[1].split(",")[0]) if running else 0
            time.sleep(0.05)
        assert world.shares() == [container]
        os.kill(pid, signal.SIGKILL)
        process.wait(30)
    assert world.shares() == []


def test_create_start_and_delete_as_an_engine_does_it(world: World, runtime: Path) -> None:
    world.write_config()
    container = name()
    assert world.runtime("create", container, lowlevel=runtime).returncode == 0
    assert world.shares() == [container]
    assert world.runtime("start", container, lowlevel=runtime).returncode == 0
    assert world.shares() == [container]
    assert world.runtime("delete", "--force", container, lowlevel=runtime).returncode == 0
    assert world.shares() == []


def test_a_second_container_counts_the_first(world: World, runtime: Path) -> None:
    """ENV-9: the caps on a GPU do not exceed its memory."""
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=9", SIX[1]])
    first, second = name(), name()
    assert world.runtime("create", first, lowlevel=runtime).returncode == 0
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=7", SIX[1]])
    refused = world.runtime("run", second, lowlevel=runtime)
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=6", SIX[1]])
    accepted = world.runtime("run", second, lowlevel=runtime)
    world.runtime("delete", "--force", first, lowlevel=runtime)
    assert refused.returncode == 1
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=7" in refused.stderr
    assert accepted.returncode == 0, accepted


def test_a_container_without_a_share_runs_as_it_always_did(world: World, runtime: Path) -> None:
    world.write_config([], SHOW_MOUNTS)
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.returncode == 0
    assert not [path for path in mounts_at(done.stdout) if "cgpu" in path]


def test_a_misspelt_share_starts_nothing(world: World, runtime: Path) -> None:
    """ENV-11: the launcher looks at what begins like our variables."""
    entry = "ALIYUN_COM_GPU_MEM_CONTAINR=6"
    world.write_config([entry], "echo started")
    done = world.runtime("run", name(), lowlevel=runtime)
    assert done.returncode == 1, done
    assert "started" not in done.stdout
    assert f"{entry}: " in done.stderr
    assert "did you mean ALIYUN_COM_GPU_MEM_CONTAINER?" in done.stderr


@pytest.mark.parametrize("size", [[], ["ALIYUN_COM_GPU_MEM_CONTAINER="]])
def test_a_share_without_a_size_starts_as_without_cgpu(
    world: World, runtime: Path, size: list[str]
) -> None:
    """ENV-4."""
    world.write_config(["ALIYUN_COM_GPU_MEM_DEV=15", *size], SHOW_MOUNTS)
    done = world.runtime("run", name(), lowlevel=runtime)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert not [path for path in mounts_at(done.stdout) if "cgpu" in path]


def _preload(world: World) -> Path:
    """A library that tells when it is loaded outside its container; returns where it would."""
    marker = world.folder / "pwned"
    source = world.folder / "x.c"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void go(void)\n"
        f'{{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    library = world.rootfs / "x.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    loaded = subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(library)}, check=False)
    assert loaded.returncode == 0
    assert marker.exists()  # it works on the host
    marker.unlink()
    return marker


def test_rel_4_the_images_preload_never_runs_on_the_host(world: World, runtime: Path) -> None:
    marker = _preload(world)
    (world.rootfs / "etc").mkdir()
    (world.rootfs / "etc" / "ld.so.preload").write_text("/x.so\n")
    preload = ["LD_PRELOAD=/proc/self/cwd/x.so", "LD_LIBRARY_PATH=/proc/self/cwd"]
    (world.rootfs / "libc.so.6").symlink_to("x.so")
    world.write_config([*SIX, *preload, "PYTHONPATH=/proc/self/cwd", "PYTHONHOME=/"])
    assert world.runtime("run", name(), lowlevel=runtime).returncode == 0
    assert not marker.exists()
    assert world.shares() == []


HOSTILE = {
    "link": lambda path, target: path.symlink_to(target / "victim"),
    "loop": lambda path, _: path.symlink_to(path.name),
    "fifo": lambda path, _: os.mkfifo(path),
    "directory": lambda path, _: path.mkdir(),
    "proc": lambda path, _: path.symlink_to("/proc/1/root/etc/passwd"),
    "dangling": lambda path, target: path.symlink_to(target / "new"),
}


@pytest.mark.parametrize("trick", HOSTILE)
@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_rel_4_a_hostile_library_path_is_refused_and_nothing_touched(
    world: World, library: str, trick: str
) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    HOSTILE[trick](world.rootfs / LIBDIR[1:] / library, outside)
    world.write_config()
    before = snapshot(outside, world.bundle, world.driver)
    done = world.runtime("run", name(), lowlevel=low_level("runc", world.folder))
    assert done.returncode == 1
    assert f"the image has {'a symbolic link ' if trick not in {'fifo', 'directory'} else ''}" in (
        done.stderr
    )
    assert library in done.stderr
    assert snapshot(outside, world.bundle, world.driver) == before
    assert world.shares() == []


@pytest.mark.parametrize(
    "place", ["dev", "usr/bin", "usr/lib", LIBDIR[1:], "dev/cgpu", "usr/local"]
)
def test_rel_4_a_linked_directory_leads_nowhere_outside(
    world: World, runtime: Path, place: str
) -> None:
    """Whether it runs or is refused: the directory outside stays empty."""
    outside = world.folder / "outside"
    outside.mkdir()
    path = world.rootfs / place
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(outside)
    world.write_config()
    world.runtime("run", name(), lowlevel=runtime)
    assert list(outside.iterdir()) == []
    assert world.shares() == []


def test_rel_4_a_volume_that_a_link_of_the_image_leads_over_dev_cgpu_is_refused(
    world: World,
) -> None:
    volume = world.folder / "volume"
    volume.mkdir()
    (world.rootfs / "data").symlink_to("dev/cgpu")
    world.write_config()
    config = world.edited()
    config["mounts"].append(
        {"destination": "/data", "type": "bind", "source": str(volume), "options": ["rbind"]}
    )
    world.write_config(mounts=config["mounts"])
    done = world.runtime("run", name(), lowlevel=low_level("runc", world.folder))
    assert done.returncode == 1
    assert "covers /dev/cgpu" in done.stderr
    assert list(volume.iterdir()) == []
