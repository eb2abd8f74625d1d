"""Find the driver through a CDI specification, if it is in none of the usual directories.

Only what a container would be given is read; the vendor's hooks, which run ldconfig, are ignored.
Of YAML, the default of ``nvidia-ctk``, only the lines that ``nvidia-ctk`` writes are understood. A
directory that they name counts only if the driver is really there.
"""

from __future__ import annotations

import os

from cgpu_node import jsontext
from cgpu_node.image.libraries import is_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SPECIFICATIONS = (
    "/etc/cdi/nvidia.json",
    "/var/run/cdi/nvidia.json",
    "/etc/cdi/nvidia.yaml",
    "/var/run/cdi/nvidia.yaml",
)
_KIND = "nvidia.com/gpu"


def driver_directory(sonames: tuple[str, ...]) -> str | None:
    """Return the host's directory that has all of ``sonames``, from the first specification."""
    for path in SPECIFICATIONS:
        for source in _read_mounts(path):
            folder, name = os.path.split(source)
            if is_version(name, sonames[0]) and all(
                os.path.exists(f"{folder}/{soname}") for soname in sonames
            ):
                return folder
    return None


def _read_mounts(path: str) -> Iterator[str]:
    """Yield the files of the host that a specification mounts; none if it is not NVIDIA's."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        if path.endswith(".yaml"):
            yield from _parse_yaml(text)
            return
        spec = jsontext.loads(text)
        if spec["kind"] == _KIND:
            devices = spec.get("devices") or []
            edits = [spec.get("containerEdits"), *(d.get("containerEdits") for d in devices)]
            yield from [source for edit in edits for source in _list_sources(edit or {})]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return


def _parse_yaml(text: str) -> list[str]:
    pairs = [line.partition(":")[::2] for line in text.splitlines()]
    plain = [(key.rstrip(), value.strip().strip("'\"")) for key, value in pairs]
    if ("kind", _KIND) not in plain:
        return []
    return [value for key, value in plain if key.lstrip(" -") == "hostPath" and value[:1] == "/"]


def _list_sources(edit: dict[str, Any]) -> list[str]:
    sources = [mount.get("hostPath") for mount in edit.get("mounts") or []]
    return [source for source in sources if isinstance(source, str) and source.startswith("/")]
