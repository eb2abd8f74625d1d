"""The editor, the view of a root file system, and which host files may be mounted."""

from __future__ import annotations

import copy
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cgpu_env import CgpuError, GpuShare
from cgpu_hook import created
from cgpu_hook.edit import apply_plan, without_earlier_edit
from cgpu_hook.plan import Draft, HostFiles, Mount, Plan, Setting
from cgpu_node import trust
from cgpu_node.facts.node import DeviceNode, Node
from cgpu_node.image.rootfs import Rootfs, resolve_path
from cgpu_node.settings.config import Config
from cgpu_node.trust import check_source
from lab.machine.hostile_files import Hostile

pytestmark = pytest.mark.unit

NULL = DeviceNode("/dev/null", "/dev/nvidia0")
ZERO = DeviceNode("/dev/zero", "/dev/nvidia1")
HOOK = {"path": "/opt/cgpu-hook", "args": ["cgpu-hook", "poststop", "abc"]}
HOST_FILES = HostFiles("abc", "/run/cgpu", {}, {}, "/opt/cgpu-hook")
SHARES = (GpuShare(0, "GPU-0", 5),)


def plan_of(**fields: Any) -> Plan:
    return Plan(SHARES, hooks={"poststop": [HOOK]}, **fields)


def test_a_granted_device_gets_a_node_and_a_rule() -> None:
    linux = apply_plan({}, plan_of(devices=(NULL,)))["linux"]
    assert linux["devices"] == [
        {"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}
    ]
    rule = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
    assert linux["resources"]["devices"] == [rule]


def test_a_device_that_is_there_already_is_not_given_twice() -> None:
    once = apply_plan({}, plan_of(devices=(NULL,)))
    twice = apply_plan(once, plan_of(devices=(NULL,)))
    assert twice["linux"] == once["linux"]


def test_a_withheld_device_is_taken_away_with_its_rule() -> None:
    given = apply_plan({}, plan_of(devices=(NULL, ZERO)))
    left = apply_plan(given, plan_of(devices=(NULL,), withheld=(ZERO,)))
    assert [d["path"] for d in left["linux"]["devices"]] == ["/dev/nvidia0"]
    assert [r["minor"] for r in left["linux"]["resources"]["devices"]] == [3]


def test_rules_and_masks_of_the_engine_stay() -> None:
    closed = {"allow": False, "access": "rwm"}
    config = {"linux": {"resources": {"devices": [closed]}, "maskedPaths": ["/proc/kcore"]}}
    linux = apply_plan(config, plan_of(devices=(NULL,), masks=("/x", "/proc/kcore")))["linux"]
    assert linux["resources"]["devices"][0] == closed
    assert linux["maskedPaths"] == ["/proc/kcore", "/x"]


def test_mounts_come_after_those_of_the_configuration() -> None:
    own = {"destination": "/dev", "type": "tmpfs"}
    mount = Mount("/etc/hostname", "/dev/cgpu/x")
    assert apply_plan({"mounts": [own]}, plan_of(mounts=(mount,)))["mounts"] == [
        own,
        {
            "destination": "/dev/cgpu/x",
            "type": "bind",
            "source": "/etc/hostname",
            "options": ["bind", "ro", "nosuid", "nodev"],
        },
    ]


@pytest.mark.parametrize(
    "fields",
    [{"mounts": (Mount("/etc/hostname", "/opt/\udcff/x"),)}, {"masks": ("/opt/\udcff/x",)}],
    ids=["mount", "mask"],
)
def test_rel_6_a_driver_that_no_configuration_can_name_is_refused(fields: dict[str, Any]) -> None:
    """Runtimes would mount beside it."""
    with pytest.raises(CgpuError, match=r"^the image's /opt/\\udcff/x: the name is not UTF-8"):
        apply_plan({}, plan_of(**fields))


def test_rel_6_the_hook_mounts_over_a_name_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []
    monkeypatch.setattr(created, "_run_program", lambda _, data: given.append(data) or 0)
    plan = plan_of(mounts=(Mount("/etc/hostname", "/opt/\udcff/x"),))
    draft = Draft({}, "abc", lambda: Rootfs("/"), Setting(), Config())
    draft.plan, draft.host_files = plan, HOST_FILES
    created.make_mounts(draft, 1, "/")
    assert given == [b"ro\0/etc/hostname\0/opt/\xff/x\0"]


def test_hooks_of_others_stay_and_come_first() -> None:
    other = {"path": "/x"}
    config = {"hooks": {"poststop": [other], "prestart": [other]}}
    assert apply_plan(config, plan_of())["hooks"] == {
        "poststop": [other, HOOK],
        "prestart": [other],
    }


def test_editing_leaves_the_given_document_alone() -> None:
    config = {"mounts": [], "linux": {"devices": [], "resources": {"devices": []}}, "hooks": {}}
    before = copy.deepcopy(config)
    apply_plan(config, plan_of(devices=(NULL,), masks=("/x",)))
    assert config == before


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(CgpuError, match=r"device /dev/nvidia99: No such file"):
        apply_plan({}, plan_of(devices=(DeviceNode("/dev/nvidia99", "/dev/nvidia99"),)))


def test_an_earlier_edit_is_undone_only_where_our_hook_is() -> None:
    node = Node("1", "/d", {"a": "/d/a"}, {}, (), ())
    ours = [
        {"destination": "/dev/cgpu/limits", "source": "/run/cgpu/containers/old/limits"},
        {"destination": "/dev/cgpu/real/a", "source": "/d/a"},
    ]
    theirs = {"destination": "/data", "source": "/data"}
    config = {"mounts": [theirs, *ours], "hooks": {"poststop": [{"path": "/x"}, HOOK]}}
    undone = without_earlier_edit(config, node, HOST_FILES)
    assert undone["mounts"] == [theirs]
    assert undone["hooks"]["poststop"] == [{"path": "/x"}]
    foreign = {**config, "hooks": {}}
    assert without_earlier_edit(foreign, node, HOST_FILES) is foreign


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/file").write_text("x")
    (root / "lib").symlink_to("usr/lib")
    (root / "out").symlink_to("/etc")
    (root / "up").symlink_to("../../../../../../etc")
    (root / "loop").symlink_to("loop")
    (root / "usr/abs").symlink_to("/usr/lib")
    os.mkfifo(root / "fifo")
    return root


def test_rel_4_the_view_follows_no_link(root: Path) -> None:
    view = Rootfs(str(root))
    assert view.get_kind("/usr/lib/file") == "file"
    assert view.get_kind("/usr/lib") == "directory"
    assert view.get_kind("/") == "directory"
    assert view.get_kind("/out") == "link"
    assert view.get_kind("/fifo") == "other"
    for path in ("/lib/file", "/out/passwd", "/up/passwd", "/loop/x", "/missing", "/missing/x"):
        assert view.get_kind(path) is None
    assert view.list_names("/usr") == ["abs", "lib"]
    assert view.list_names("/out") == []
    assert view.list_names("/usr/lib/file") == []
    assert view.read_link("/out") == "/etc"
    assert view.read_link("/usr") == ""
    assert view.read_link("/out/x") == ""


def test_a_file_that_is_kept_from_the_view_is_not_taken_for_missing(root: Path) -> None:
    """REL-7: another container may hold a lease on a file that it shares with the image."""
    assert Rootfs(str(root)).read("/usr/lib/file", 100) == b"x"
    with (
        Hostile("lease", root / "usr/lib/file"),
        pytest.raises(CgpuError, match="'/usr/lib/file': another process holds a lease on it"),
    ):
        Rootfs(str(root)).read("/usr/lib/file", 100)


def test_a_view_of_nothing_is_empty(tmp_path: Path) -> None:
    view = Rootfs(str(tmp_path / "missing"))
    assert view.get_kind("/usr") is None
    assert view.list_names("/") == []


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/usr/lib", "/usr/lib"),
        ("usr//lib/", "/usr/lib"),
        ("/lib/x", "/usr/lib/x"),
        ("/out/x", "/etc/x"),
        ("/up/x", "/etc/x"),
        ("/usr/abs/../y", "/usr/y"),
        ("/../../usr", "/usr"),
        ("/.", "/"),
        ("/loop/x", "/loop/x"),
        ("/missing/../usr", "/usr"),
    ],
)
def test_rel_4_links_are_resolved_inside_the_root(root: Path, path: str, end: str) -> None:
    assert resolve_path(Rootfs(str(root)), path) == end


def test_the_view_leaks_no_descriptor(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    view = Rootfs(str(root))
    for path in ("/usr/lib/file", "/lib/file", "/loop/x", "/fifo", "/missing/x"):
        view.get_kind(path)
        view.list_names(path)
        view.read_link(path)
    del view
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_source_of_our_own_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    check_source(str(path))


def test_rel_4_a_source_that_others_could_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_text("x")
    path.chmod(0o666)
    with pytest.raises(CgpuError, match="others could change"):
        check_source(str(path))
    check_source(str(path), shared=True)
    path.chmod(0o644)
    path.parent.chmod(0o777)
    with pytest.raises(CgpuError, match="others could change"):
        check_source(str(path))
    path.parent.chmod(0o777 | stat.S_ISVTX)
    check_source(str(path))
    os.chown(path, 1000, 1000)
    with pytest.raises(CgpuError, match="others could change"):
        check_source(str(path))


def test_in_a_user_namespace_the_hosts_files_are_those_of_a_user_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-6."""
    path = tmp_path / "library"
    path.write_bytes(b"")
    os.chown(path, int(Path("/proc/sys/kernel/overflowuid").read_text()), 0)
    with pytest.raises(CgpuError, match="others could change it"):
        check_source(str(path))
    monkeypatch.setattr(trust, "_WHOLE", [])  # as if the map of this namespace were another
    check_source(str(path))
    path.chmod(0o666)
    with pytest.raises(CgpuError, match="others could change it"):
        check_source(str(path))


def test_rel_4_a_link_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(CgpuError, match="symbolic link"):
        check_source(str(tmp_path / "link"))
    with pytest.raises(CgpuError, match="No such file"):
        check_source(str(tmp_path / "missing"))
