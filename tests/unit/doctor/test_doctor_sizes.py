"""What ``cgpu doctor`` says of sizes that were forgotten, or suit no GPU (CLI-4, ENV-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpu_doctor import driver, state
from cgpu_doctor.finding import Ground
from cgpu_install.machine import Machine
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings import rules

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
    found = state.check_shares(Ground(Machine(str(tmp_path)), str(tmp_path), None))
    assert [each.value for each in found if each.level == "warning"] == (["30"] if warned else [])


def test_a_default_size_that_a_gpu_cannot_give_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configured one, and what ``cgpu set`` has put in its place."""
    libraries = dict.fromkeys(driver.PROXIED, "/x")
    gpu = NodeGpu(0, "GPU-1", "Tesla T4", 16 << 30, 0, ())
    node = Node("1", "/x", libraries, {}, (gpu,), ())
    monkeypatch.setattr(driver, "_probe_driver", lambda _: node)
    ground = Ground(Machine(str(tmp_path)), str(tmp_path), None)

    def wrong() -> list[tuple[str, str]]:
        return [(found.level, found.value) for found in driver.check_driver(ground) if found.mend]

    path = tmp_path / "etc/cgpu/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[node]\ndefault_memsize = '16GiB'\n")
    assert wrong() == []
    path.write_text("[node]\ndefault_memsize = '17GiB'\n")
    assert wrong() == [("warning", str(17 << 30))]
    rules.write_default(ground.state_dir, 1 << 30)
    assert wrong() == []
