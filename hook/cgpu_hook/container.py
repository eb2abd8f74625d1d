"""One container's share: the facts about the node that it needs, its admission, and its end."""

from __future__ import annotations

import os

import cgpu_shim
from cgpu_env.errors import CgpuError
from cgpu_hook.plan import HostFiles
from cgpu_node.paths import ROOT_STATE, open_state, state_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Draft
    from cgpu_node.facts.node import Node

HOOK = f"{os.path.dirname(os.path.realpath(__file__))}/_bin/cgpu-hook"
_TOOL = "nvidia-smi"


def load_host(draft: Draft) -> dict[str, Any]:
    """Load the facts about the node, and the files of the host that a plan may refer to.

    Returns:
        The configuration without the edits of an earlier run of the same bundle.
    """
    from cgpu_hook.edit import without_earlier_edit
    from cgpu_node.facts.node import load_node

    setting = draft.setting
    state_dir = state_path(setting.state_dir) if setting.dry else open_state(setting.state_dir)
    node = load_node(
        state_dir,
        setting.driver_dir,
        config=draft.settings,
        refresh=draft.refresh,
        keep=not setting.dry,
    )
    files = find_host_files(draft.id, state_dir, node)
    if state_dir == ROOT_STATE:
        from cgpu_node.sealed import seal_proxy

        proxies = {
            soname: seal_proxy(proxy, state_dir, mount=not setting.dry)
            for soname, proxy in files.proxies.items()
        }
        files = files._replace(proxies=proxies)
    draft.node, draft.host_files = node, files
    return without_earlier_edit(draft.config, node, files)


def find_host_files(name: str, state_dir: str, node: Node) -> HostFiles:
    """Return the files of this host that a plan for the container ``name`` refers to.

    Raises:
        CgpuError: cgpu was not built or is not installed completely.
    """
    try:
        proxies = {name: os.path.realpath(cgpu_shim.library(name)) for name in node.libraries}
    except FileNotFoundError as error:
        raise CgpuError(f"cgpu is not complete: {error}") from None
    if not os.access(HOOK, os.X_OK):
        raise CgpuError(f"cgpu is not complete: {HOOK} is missing")
    return HostFiles(name, state_dir, proxies, _find_tools(node.driver_dir), HOOK)


def _find_tools(driver_dir: str) -> dict[str, str]:
    """Find the driver's nvidia-smi, if it has one: in its directory, or in ``bin`` beside ``lib``.

    For example, ``/usr/bin`` is beside ``/usr/lib64/nvidia``, and ``/opt/nvidia/bin`` beside
    ``/opt/nvidia/lib64``.
    """
    candidates = [f"{driver_dir}/bin/{_TOOL}", f"{driver_dir}/{_TOOL}"]
    parts = driver_dir.split("/")
    candidates += [
        "/".join((*parts[:i], "bin", _TOOL))
        for i in range(len(parts) - 1, 0, -1)
        if parts[i] in ("lib", "lib64")
    ]
    for path in candidates:
        if os.path.isfile(path):
            return {f"/usr/bin/{_TOOL}": os.path.realpath(path)}
    return {}


def admit_container(draft: Draft, pid: int, runtime_dir: str | None) -> None:
    """Give the container its share, if it has one. Its owner is process ``pid``, later the runtime.

    Raises:
        CgpuError: there is no room for it, or the state directory cannot be written.
    """
    from cgpu_node.shares.liveness import start_time
    from cgpu_node.shares.registry import Owner, Registry

    request, started = draft.plan.request, start_time(pid)
    if request is None:
        return
    if started is None:
        raise CgpuError("the container's creator died")
    process = draft.config.get("process") or {}
    Registry(draft.host_files.state_dir).admit(
        draft.id,
        "container",
        request,
        draft.node,
        Owner(pid, started, runtime_dir),
        [str(argument) for argument in process.get("args") or []],
        pod=draft.pod and draft.pod.identity,
    )


def announce_container(draft: Draft) -> None:
    """Inform the server of an admitted container. The container's start does not wait for this."""
    from cgpu_node.server import wake_server

    wake_server(draft.host_files.state_dir, draft.node.driver_dir)


def give_back_share(draft: Draft) -> None:
    """Undo ``admit_container``."""
    from cgpu_node.shares.registry import Registry

    Registry(draft.host_files.state_dir).remove(draft.host_files.id)
