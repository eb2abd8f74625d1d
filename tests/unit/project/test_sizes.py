"""No folder and no file is larger than one can overlook."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


def listed(*kinds: str) -> list[str]:
    """The files of these kinds."""
    patterns = [f"*.{kind}" for kind in kinds]
    return subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True).split()


def test_no_folder_has_more_files_than_one_can_overlook() -> None:
    """Some fifteen; a header and its source count as one."""
    names = {name.rpartition(".")[0] for name in listed("py", "c", "h", "def", "inc")}
    folders = [str(Path(name).parent) for name in names]
    assert {name: folders.count(name) for name in folders if folders.count(name) > 18} == {}


def test_no_file_is_longer_than_400_lines() -> None:
    """Tables in files of their own are as long as what they list: ``*.def``."""
    lines = {name: len((ROOT / name).read_bytes().splitlines()) for name in listed("py", "c", "h")}
    assert {name: count for name, count in lines.items() if count > 400} == {}
