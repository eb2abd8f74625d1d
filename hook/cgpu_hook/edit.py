"""The editor: carries a plan out by changing a container's OCI configuration."""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_hook.document import is_utf8
from cgpu_hook.plan import BASE, SHARE_FILES, Mount
from cgpu_node.trust import check_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import HostFiles, Plan
    from cgpu_node.facts.node import DeviceNode, Node

_VENDOR_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_NODE_OPTIONS = ("bind", "rw", "nosuid", "nodev", "noexec")


class _CharDevice(NamedTuple):
    path: str
    major: int
    minor: int
    mode: int

    def to_rule(self) -> dict[str, Any]:
        return {
            "allow": True,
            "type": "c",
            "major": self.major,
            "minor": self.minor,
            "access": "rwm",
        }

    def to_entry(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "type": "c",
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.mode,
        }


def apply_plan(config: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return a copy of ``config`` with ``plan`` in it.

    Raises:
        CgpuError: a device is missing, a file of the host cannot be trusted, or a path of the image
            cannot be written into a configuration.
    """
    check_sources(plan)
    for path in (*plan.masks, *(mount.destination for mount in plan.mounts)):
        if not is_utf8(path):  # runtimes would mount at another path
            raise CgpuError(
                f"the image's {printable(path)}: the name is not UTF-8, so nothing can be mounted"
                " over the file: rename it, or leave it out of what the loader searches"
            )
    new = dict(config)
    hidden = {node.container for node in plan.withheld}
    kept = [m for m in config.get("mounts") or [] if m["destination"] not in hidden]
    present = {m["destination"] for m in kept}
    added = [*plan.mounts, *(m for m in bind_devices(plan.devices) if m.destination not in present)]
    new["mounts"] = [*kept, *(_to_oci_mount(mount) for mount in added)]
    new["linux"] = _edit_linux(config.get("linux") or {}, plan, _list_char_devices(plan.devices))
    hooks = dict(config.get("hooks") or {})
    for stage, entries in plan.hooks.items():
        hooks[stage] = [*(hooks.get(stage) or []), *entries]
    new["hooks"] = hooks
    return new


def without_earlier_edit(
    config: dict[str, Any], node: Node, host_files: HostFiles
) -> dict[str, Any]:
    """Return ``config`` without the mounts and the hook of an earlier run of the same bundle.

    Another release, installed elsewhere, may have made the earlier run. A configuration is changed
    only if our hook is in it; a hook cannot come from an image or from a user of the engine.
    """
    hooks = dict(config.get("hooks") or {})
    found = False
    for stage in ("prestart", "poststop"):
        given = hooks.get(stage) or []
        others = [h for h in given if not _is_ours(h, host_files.hook)]
        if len(others) < len(given):
            found, hooks[stage] = True, others
    if not found:
        return config
    nodes = (*node.device_nodes, *(n for gpu in node.gpus for n in gpu.device_nodes))
    sources = {
        *host_files.proxies.values(),
        *host_files.tools.values(),
        *node.libraries.values(),
        *node.companions.values(),
        *(n.host for n in nodes),
    }
    shares = f"{host_files.state_dir}/containers/"
    proxies = tuple(f"/cgpu_shim/_lib/{name}" for name in host_files.proxies)

    def is_ours(mount: dict[str, Any]) -> bool:
        source = mount.get("source")
        if not isinstance(source, str):
            return False
        return source in sources or source.startswith(shares) or source.endswith(proxies)

    mounts = [mount for mount in config["mounts"] if not is_ours(mount)]
    return {**config, "mounts": mounts, "hooks": hooks}


def is_vendor_hook(hook: object) -> bool:
    """Return whether a hook is NVIDIA's, which mounts its driver into the created container."""
    path = hook.get("path") if isinstance(hook, dict) else None
    return isinstance(path, str) and os.path.basename(path) in _VENDOR_HOOKS


def is_legacy(config: dict[str, Any]) -> bool:
    """Return whether the configuration has NVIDIA's prestart hook, as in its legacy mode."""
    return any(map(is_vendor_hook, (config.get("hooks") or {}).get("prestart") or []))


def _is_ours(hook: object, own: str) -> bool:
    path = hook.get("path") if isinstance(hook, dict) else None
    return isinstance(path, str) and (path == own or path.endswith("/cgpu_hook/_bin/cgpu-hook"))


def _to_oci_mount(mount: Mount) -> dict[str, Any]:
    kind = mount.options[0]
    return {
        "destination": mount.destination,
        "type": kind,
        "source": mount.source,
        "options": [option for option in mount.options if option != "tmpfs"],
    }


def check_sources(plan: Plan) -> None:
    """Refuse a plan if somebody else could change its files on the host.

    Raises:
        CgpuError: a file cannot be trusted.
    """
    known: set[str] = set()
    for mount in plan.mounts:
        # The share's files are created when it is admitted; a tmpfs has no files.
        if mount.destination not in (BASE, *SHARE_FILES):
            check_source(mount.source, known=known)


def bind_devices(nodes: tuple[DeviceNode, ...]) -> list[Mount]:
    """Return the mounts of the files that stand for devices in a simulated driver.

    Raises:
        CgpuError: one is missing or cannot be trusted.
    """
    found, known = [], set[str]()
    for node in nodes:
        if stat.S_ISREG(_stat_device(node).st_mode):
            check_source(node.host, shared=True, known=known)
            found.append(Mount(node.host, node.container, _NODE_OPTIONS))
    return found


def _list_char_devices(nodes: tuple[DeviceNode, ...]) -> list[_CharDevice]:
    found = []
    for node in nodes:
        facts = _stat_device(node)
        if stat.S_ISCHR(facts.st_mode):
            number = (os.major(facts.st_rdev), os.minor(facts.st_rdev))
            found.append(_CharDevice(node.container, *number, stat.S_IMODE(facts.st_mode)))
    return found


def _stat_device(node: DeviceNode) -> os.stat_result:
    try:
        facts = os.lstat(node.host)
    except OSError as error:
        raise CgpuError(f"device {node.host}: {error.strerror}") from None
    if not (stat.S_ISCHR(facts.st_mode) or stat.S_ISREG(facts.st_mode)):
        raise CgpuError(f"device {node.host}: neither a character device nor a file")
    return facts


def _edit_linux(old: dict[str, Any], plan: Plan, characters: list[_CharDevice]) -> dict[str, Any]:
    hidden = {node.container for node in plan.withheld}
    devices = [d for d in old.get("devices") or [] if not _is_at(d, hidden)]
    withheld = [d for d in old.get("devices") or [] if _is_at(d, hidden)]
    present = {d.get("path") for d in devices if isinstance(d, dict)}
    resources = dict(old.get("resources") or {})
    closed = [(d.get("major"), d.get("minor")) for d in withheld]
    rules = [r for r in resources.get("devices") or [] if not _allows_device(r, closed)]
    resources["devices"] = [*rules, *(c.to_rule() for c in characters if c.to_rule() not in rules)]
    masked = old.get("maskedPaths") or []
    return {
        **old,
        "devices": [*devices, *(c.to_entry() for c in characters if c.path not in present)],
        "resources": resources,
        "maskedPaths": [*masked, *(path for path in plan.masks if path not in masked)],
    }


def _is_at(device: object, paths: set[str]) -> bool:
    return isinstance(device, dict) and device.get("path") in paths


def _allows_device(rule: object, devices: list[tuple[object, object]]) -> bool:
    """Return whether a cgroup rule allows exactly one of ``devices``."""
    return (
        isinstance(rule, dict)
        and rule.get("allow") is True
        and (rule.get("major"), rule.get("minor")) in devices
    )
