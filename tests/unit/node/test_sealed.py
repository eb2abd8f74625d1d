"""Which overlay shows a proxy, and what is taken away with it (REL-9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_node import sealed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.unit


def until_changed(path: Path, act: Callable[[], object]) -> None:
    """Repeat it: a kernel's clock for times of files has steps."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        act()


def test_a_proxy_has_another_overlay_if_it_changes_and_not_if_its_folder_does(
    tmp_path: Path,
) -> None:
    """The kernel shows the old mode of a file in an overlay that is mounted."""
    proxy, beside = tmp_path / "libcuda.so.1", tmp_path / "beside"
    proxy.write_bytes(b"")
    first = sealed.overlay_path(str(proxy), "/run/cgpu")
    until_changed(tmp_path, lambda: (beside.write_bytes(b""), beside.unlink()))
    assert sealed.overlay_path(str(proxy), "/run/cgpu") == first
    until_changed(proxy, lambda: proxy.chmod(0o644))
    assert sealed.overlay_path(str(proxy), "/run/cgpu") != first


def test_only_what_was_made_for_overlays_is_taken_away(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    for made in ("0-1-2/cgpu_shim/_lib", "empty", "other/cgpu_shim/_lib"):
        (lib / made).mkdir(parents=True)
    mine = lib / "other/cgpu_shim/_lib/mine"
    mine.write_bytes(b"")
    sealed.unmount_overlays(str(tmp_path))
    assert [path.name for path in lib.iterdir()] == ["other"]
    mine.unlink()
    sealed.unmount_overlays(str(tmp_path))
    assert not lib.exists()
