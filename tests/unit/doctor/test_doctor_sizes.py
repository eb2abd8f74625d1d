"""What ``cgpu doctor`` says of containers whose size was forgotten (CLI-4, ENV-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpu_doctor import state
from cgpu_doctor.finding import Ground
from cgpu_install.machine import Machine

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("size", "warned"), [("", True), ("6", False)])
def test_a_container_whose_size_was_forgotten_is_named(
    tmp_path: Path, size: str, *, warned: bool
) -> None:
    """One process of each; not the host's, not of a container with a share, nor of a session."""
    for pid, space in (("self", 1), ("7", 1), ("30", 2), ("31", 2), ("40", 3), ("50", 4)):
        folder = tmp_path / "proc" / pid
        (folder / "ns").mkdir(parents=True)
        given = f"ALIYUN_COM_GPU_MEM_DEV=15\0ALIYUN_COM_GPU_MEM_CONTAINER={size}\0"
        (folder / "environ").write_text(given)
        (folder / "ns/mnt").symlink_to(f"mnt:[{space}]")
    for pid, base in (("30", "/etc"), ("40", "/dev/cgpu"), ("50", "/run/user/7/cgpu")):
        mount = f"31 30 0:9 /containers/x/limits {base}/limits ro - tmpfs cgpu rw\n"
        (tmp_path / f"proc/{pid}/mountinfo").write_text(mount.replace("/etc/limits", "/etc/hosts"))
    found = state.shares(Ground(Machine(str(tmp_path)), str(tmp_path), None))
    assert [each.value for each in found if each.level == "warning"] == (["30"] if warned else [])
