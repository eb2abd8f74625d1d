"""The CDI specification of a claim: what an engine gives each container that has the claim. Pure.

It has a device for each of the claim's requests, because a container may name only one of them. A
device gives device nodes and variables, and starts the hook that mounts libraries and limits. The
hook reads claim and GPUs from its own arguments, which no user can write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_k8s.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_node.facts.node import DeviceNode

CLASS = "claim"
KIND = f"{DRIVER}/{CLASS}"
_VERSION = "0.5.0"  # the newest that containerd 1.7 reads
_PREFIX, _SUFFIX = f"{DRIVER}-{CLASS}_", ".json"
_HOOK_SECONDS = 120  # the first start after a boot waits for the driver
_HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


class HookPlace(NamedTuple):
    """The hook on the node.

    Attributes:
        program: the path of ``cgpu-hook``.
        state_dir: the state directory.
        driver_dir: the directory of the driver's libraries there; None: the hook searches it.
    """

    program: str
    state_dir: str
    driver_dir: str | None = None


class ClaimPart(NamedTuple):
    """The part of a claim that one of its requests has.

    Attributes:
        request: its name.
        uuids: of its GPUs.
        nodes: the character devices of its GPUs.
    """

    request: str
    uuids: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]


def device_id(uid: str, request: str) -> str:
    """Return the name by which a kubelet asks its engine for a request's part of a claim."""
    return f"{KIND}={_name_device(uid, request)}"


def _name_device(uid: str, request: str) -> str:
    """Return the name of a device; a request that is one of several alternatives has a slash."""
    return f"{uid}_{request.replace('/', '.')}"


def file_name(uid: str) -> str:
    """Return the name of the claim's file, in the folder of CDI specifications."""
    return f"{_PREFIX}{uid}{_SUFFIX}"


def read_uid(name: str) -> str | None:
    """Return the UID of the claim whose file has this name; None: the file is none of ours."""
    if not name.startswith(_PREFIX) or not name.endswith(_SUFFIX):
        return None
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)


def is_unfinished(name: str) -> bool:
    """Return whether a file of this name is one that a killed driver was writing."""
    return name.startswith(_PREFIX) and name.endswith(f"{_SUFFIX}.new")


def write_specification(uid: str, parts: Iterable[ClaimPart], hook: HookPlace) -> bytes:
    """Return the content of a claim's file.

    Args:
        uid: of the claim.
        parts: the parts of its requests.
        hook: what prepares a container for the claim.
    """
    devices = [
        {
            "name": _name_device(uid, each.request),
            "containerEdits": _edit_container(uid, each, hook),
        }
        for each in parts
    ]
    content = {"cdiVersion": _VERSION, "kind": KIND, "devices": devices}
    return json.dumps(content, indent=1).encode()


def _edit_container(uid: str, part: ClaimPart, hook: HookPlace) -> dict[str, Any]:
    arguments = ["--claim", uid, "--gpus", ",".join(part.uuids), "--state-dir", hook.state_dir]
    arguments += ["--driver-dir", hook.driver_dir] if hook.driver_dir else []
    start = {
        "hookName": "createRuntime",
        "path": hook.program,
        "args": ["cgpu-hook", "claim", *arguments],
        "env": list(_HOOK_ENVIRONMENT),
        "timeout": _HOOK_SECONDS,
    }
    edits: dict[str, Any] = {
        # Else NVIDIA's runtime, where it is the default, would add what the image asks for.
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "hooks": [start],
    }
    devices = [{"path": each.container, "hostPath": each.host} for each in part.nodes]
    if devices:
        edits["deviceNodes"] = devices
    return edits
