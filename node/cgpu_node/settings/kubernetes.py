"""The setting whether pods on this node follow schedulers' allocations, ``kubernetes.json``.

::

    {"version": 1, "node": "gpu-a", "mode": "cgpu", "pass_through": ["monitoring"]}

It is beside the configuration, because it must exist before the first pod of a boot starts. The
node's agent writes it. Without the file, pods are treated like any other container.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_node import jsontext
from cgpu_node.paths import write_atomically
from cgpu_node.trust import check_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 1
SHARE, CGPU, CORE_MEM, TOPOLOGY = "share", "cgpu", "core_mem", "topology"
UNLIMITED = (SHARE, TOPOLOGY)  # they choose the GPUs of a container, and no more
# The rules of each GPU under each mode; 5 is the native policy, 3 the fixed one.
RULES: Mapping[str, Mapping[str, int]] = {
    SHARE: {},
    CGPU: {"policy": 5, "max_inst": 20},
    CORE_MEM: {"policy": 3, "max_inst": 20},
    TOPOLOGY: {},
}
_FIELDS = ("version", "node", "mode", "pass_through")


class Kubernetes(NamedTuple):
    """The way in which this node follows allocations.

    Attributes:
        node: its name in the cluster.
        mode: what is enforced: nothing, memory, memory and compute, or that GPUs are whole.
        pass_through: namespaces whose pods are treated like any other container.
    """

    node: str
    mode: str
    pass_through: tuple[str, ...] = ()


def read_setting(path: str) -> Kubernetes | None:
    """Read the setting; None if there is no file.

    Raises:
        CgpuError: it is damaged, or others could change it; one sentence names the field.
    """
    if not os.path.lexists(path):
        return None
    check_source(os.path.realpath(path))  # a user who can write it takes any share
    try:
        with open(path, "rb") as file:
            content = jsontext.loads(file.read().decode())
    except OSError as error:
        raise CgpuError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CgpuError(f"{path}: not JSON: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise CgpuError(f"{path}: expected a JSON object")
    return _check_setting(path, content)


def _check_setting(path: str, content: dict[str, Any]) -> Kubernetes:
    for name in content:
        if name not in _FIELDS:
            raise CgpuError(
                f"{path}: {printable(name)}: expected the fields {', '.join(_FIELDS)} only"
            )
    version, node, mode = (content.get(name) for name in _FIELDS[:3])
    namespaces = content.get("pass_through", [])
    if version != VERSION or isinstance(version, bool):
        raise CgpuError(f"{path}: version = {printable(str(version))}: expected {VERSION}")
    if not isinstance(node, str) or not node:
        raise CgpuError(f"{path}: node = {printable(str(node))}: expected the node's name")
    if not isinstance(mode, str) or mode not in RULES:
        raise CgpuError(
            f"{path}: mode = {printable(str(mode))}: expected one of {', '.join(RULES)}"
        )
    if not isinstance(namespaces, list) or not all(isinstance(n, str) and n for n in namespaces):
        raise CgpuError(f"{path}: pass_through: expected a list of namespaces")
    return Kubernetes(node, mode, tuple(namespaces))


def write_setting(path: str, setting: Kubernetes) -> None:
    """Write ``setting``. It holds from the next container on, and survives a loss of power.

    Raises:
        CgpuError: ``read_setting`` would refuse it.
        OSError: it cannot be written; the previous setting holds.
    """
    content = {"version": VERSION, **setting._asdict(), "pass_through": [*setting.pass_through]}
    _check_setting(path, content)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    write_atomically(path, jsontext.dumps(content).encode(), 0o644, durable=True)
