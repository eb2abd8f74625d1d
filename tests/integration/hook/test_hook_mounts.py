"""cgpu-hook mount: the last line of defence, whatever the planner saw."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.worlds.hook import World, hook, snapshot

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture(name="namespace")
def _namespace() -> Any:
    """A process in a mount namespace of its own, whose root a runtime has not changed yet."""
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", "echo ready; exec sleep 60"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def mount(world: World, pid: int, *records: tuple[str, str, str]) -> str:
    data = "".join(f"{field}\0" for record in records for field in record).encode()
    done = hook("mount", str(pid), str(world.rootfs), data=data)
    return done.stderr.decode() if done.returncode else "done"


@pytest.mark.parametrize(
    "target", ["/link/x", "/loop/x", "/etc", "/up/x", "/linkfile", "/proc-link/x", "/fifo", "/null"]
)
def test_rel_4_a_mount_through_or_onto_something_odd_is_refused(
    world: World, namespace: int, target: str
) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    root = world.rootfs
    (root / "etc").mkdir()
    (root / "link").symlink_to(outside)
    (root / "linkfile").symlink_to(outside / "file")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("../../outside")
    (root / "proc-link").symlink_to("/proc/self/root")
    os.mkfifo(root / "fifo")
    os.mknod(root / "null", 0o020666, os.makedev(1, 3))
    before = snapshot(outside, world.bundle)
    answer = mount(world, namespace, ("ro", str(world.driver / "gpu0"), target))
    assert answer.startswith(f"cgpu: mount of {target}: "), answer
    assert snapshot(outside, world.bundle) == before
    assert str(world.folder) not in Path(f"/proc/{namespace}/mountinfo").read_text()


def test_a_mount_is_made_in_the_containers_namespace_only(world: World, namespace: int) -> None:
    source = str(world.driver / "gpu0")
    assert mount(world, namespace, ("ro", source, "/opt/new/file"), ("mask", "/dev/null", "/tmp"),
                 ("mask", "/dev/null", "/missing")) == "done"  # fmt: skip
    inside = Path(f"/proc/{namespace}/root{world.rootfs}")
    assert (inside / "opt/new/file").read_text() == "driver gpu0"
    assert (world.rootfs / "opt/new/file").read_text() == ""
    mountinfo = Path(f"/proc/{namespace}/mountinfo").read_text()
    assert f"{world.rootfs}/opt/new/file ro,nosuid,nodev" in mountinfo
    assert str(world.rootfs) not in Path("/proc/self/mountinfo").read_text()


def test_rel_4_a_link_is_no_mount_source(world: World, namespace: int) -> None:
    link = world.driver / "link"
    link.symlink_to("gpu0")
    assert "cgpu: mount of" in mount(world, namespace, ("ro", str(link), "/opt/x"))


def test_rel_4_a_source_that_others_can_change_is_refused(world: World, namespace: int) -> None:
    source = world.driver / "gpu0"
    source.chmod(0o666)
    assert "not permitted" in mount(world, namespace, ("ro", str(source), "/opt/x"))
    source.chmod(0o644)
    os.chown(source, 1000, 1000)
    assert "not permitted" in mount(world, namespace, ("ro", str(source), "/opt/x"))


def test_rel_4_only_the_null_device_hides_anything(world: World, namespace: int) -> None:
    """Whoever owns it: crun gives a standard stream that is /dev/null to the container's user."""
    null, zero = world.driver / "null", world.driver / "zero"
    os.mknod(null, 0o020666, os.makedev(1, 3))
    os.mknod(zero, 0o020666, os.makedev(1, 5))
    os.chown(null, 300000, 300000)
    (world.rootfs / "victim").write_text("x")
    assert "not permitted" in mount(world, namespace, ("mask", str(zero), "/victim"))
    assert mount(world, namespace, ("mask", str(null), "/victim")) == "done"


def test_rel_6_a_directory_of_its_own_is_closed_when_the_rest_is_in_it(
    world: World, namespace: int
) -> None:
    """Limits lie in it: as a mount point it can be neither renamed nor replaced."""
    source = str(world.driver / "gpu0")
    answer = mount(world, namespace, ("tmpfs", "any", "/opt/own"), ("ro", source, "/opt/own/sub/x"))
    assert answer == "done"
    inside = Path(f"/proc/{namespace}/root{world.rootfs}/opt/own")
    assert (inside / "sub" / "x").read_text() == "driver gpu0"
    assert list((world.rootfs / "opt" / "own").iterdir()) == []
    mountinfo = Path(f"/proc/{namespace}/mountinfo").read_text()
    assert f"{world.rootfs}/opt/own ro,nosuid,nodev,noexec" in mountinfo
    words = ["nsenter", "-m", "-t", str(namespace), "mv", f"{world.rootfs}/opt/own", "/tmp/away"]
    assert "busy" in subprocess.run(words, capture_output=True, text=True, check=False).stderr


def test_rel_4_a_directory_is_not_mounted_through_a_link(world: World, namespace: int) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (world.rootfs / "opt").symlink_to(outside)
    assert "cgpu: mount of /opt" in mount(world, namespace, ("tmpfs", "any", "/opt"))
    assert "cgpu: mount of /opt/own" in mount(world, namespace, ("tmpfs", "any", "/opt/own"))
    assert list(outside.iterdir()) == []
