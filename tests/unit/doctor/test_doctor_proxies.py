"""What ``cgpu doctor`` says of the proxies as containers have them (CLI-4, REL-9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import driver
from cgpu_doctor.finding import Ground
from cgpu_install.machine import Machine
from cgpu_node import sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cgpu_doctor.finding import Finding

pytestmark = pytest.mark.unit


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A machine of files."""
    return Ground(Machine(str(tmp_path)), str(tmp_path / "run/cgpu"), None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Makes the one proxy there is, in a directory."""

    def make(folder: Path) -> Path:
        proxy = folder / "libcuda.so.1"
        folder.mkdir(exist_ok=True)
        proxy.write_bytes(b"")
        monkeypatch.setattr(driver.cgpu_shim, "library", lambda _: str(proxy))
        monkeypatch.setattr(driver, "PROXIED", (proxy.name,))
        return proxy

    return make


def wrong(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Level, value and mending of what is not in order."""
    return [(f.level, f.value, f.mend) for f in found if f.level in ("warning", "error")]


def test_a_proxy_that_only_its_owner_can_read_is_named(
    ground: Ground, tmp_path: Path, installed: Callable[[Path], Path]
) -> None:
    """As root's umask of 077 leaves it."""
    proxy = installed(tmp_path)
    proxy.chmod(0o711)
    assert wrong(driver.check_proxies(ground)) == [("error", str(proxy), f"chmod a+r {proxy}")]
    proxy.chmod(0o744)
    assert wrong(driver.check_proxies(ground)) == []


@pytest.mark.parametrize(
    ("folder", "systems", "mend"),
    [
        ("lib", "nodev\ttmpfs\n\text4\n", "modprobe overlay"),
        ("lib", "nodev\ttmpfs\nnodev\toverlay\n", "let the engine mount it"),
        ("a:b", "nodev\ttmpfs\n\text4\n", "install cgpu where the path has no ':'"),
    ],
)
def test_proxies_that_no_overlay_covers_are_named(
    ground: Ground,
    tmp_path: Path,
    installed: Callable[[Path], Path],
    folder: str,
    systems: str,
    mend: str,
) -> None:
    """REL-9: where a container's start could mount none."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text(systems)
    proxy = installed(tmp_path / folder)
    inside = Path(sealed.overlay_path(str(proxy), ground.state_dir))
    inside.parent.mkdir(parents=True)
    [found] = wrong(driver.check_proxies(ground))
    assert found[:2] == ("warning", str(proxy))
    assert mend in found[2]
    inside.write_bytes(b"")
    assert wrong(driver.check_proxies(ground)) == []
