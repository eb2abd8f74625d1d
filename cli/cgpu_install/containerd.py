"""containerd: one more runtime for its CRI plugin, made like the one of ``runc``."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from cgpu_env import CgpuError
from cgpu_env.errors import shown
from cgpu_install import entry, toml_text
from cgpu_install.tree import look

if TYPE_CHECKING:
    from cgpu_install.machine import Machine

MAIN = "/etc/containerd/config.toml"
_SHIM = "io.containerd.runc.v2"
# Version of the configuration: the plugin that has the runtimes.
_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_FRESH = 2  # every containerd from 1.3 to 2.x reads it


class UnusedError(CgpuError):
    """The file is in order, but nobody would read there what cgpu has to say."""


def files(machine: Machine) -> list[str]:
    """The one file that decides: the last one read with a section of the plugin, else the main one.

    Only what the main file imports is read, and what that imports in turn: /etc/containerd/conf.d
    too, which the default configuration of containerd 2.2 and later names. Before 2.1 the whole
    section comes from the last file that has one.
    """
    pending = [MAIN]
    seen: list[str] = []
    having: list[str] = []
    while pending:
        name = pending.pop(0)
        if name in seen:
            continue
        seen.append(name)
        data = toml_text.parse(machine.text(name))
        if _has_plugin(data) and name != MAIN:
            having.append(name)
        pending += _imports(machine, name, data)
    return having[-1:] or [MAIN]


def _imports(machine: Machine, name: str, data: dict[str, Any]) -> list[str]:
    imports = data.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(each, str) for each in imports):
        raise CgpuError(f"{name}: imports: expected a list of paths")
    folder = os.path.dirname(name)
    return [path for each in imports for path in machine.matching(os.path.join(folder, each))]


def add(text: str, program: str) -> str:
    """The text with the runtime ``cgpu`` in it."""
    data = toml_text.parse(text)
    if not data:
        text = toml_text.put(text, ("version",), _FRESH)
        data = toml_text.parse(text)
    disabled = data.get("disabled_plugins") or []
    if any(name in disabled for name in ("cri", *_PLUGINS.values())):
        raise UnusedError("disabled_plugins switches CRI off: nobody would use a runtime here")
    return entry.add(_entry(data), text, program)


def take(text: str, program: str) -> str | None:
    """The text without it."""
    data = toml_text.parse(text)
    return entry.take(_entry(data), text, program) if data.get("version") in _PLUGINS else text


def _has_plugin(data: dict[str, Any]) -> bool:
    return any(name in data.get("plugins", {}) for name in _PLUGINS.values())


def _entry(data: dict[str, Any]) -> entry.Entry:
    version = data.get("version", 1)
    if version not in _PLUGINS:
        allowed = "expected 2 or 3; see `containerd config migrate`"
        raise CgpuError(f"version = {shown(str(version))}: {allowed}")
    place = ("plugins", _PLUGINS[version], "containerd", "runtimes", "cgpu")
    return entry.Entry(toml_text, place, ("options", "BinaryName"), _like_runc)


def _like_runc(data: dict[str, Any], program: str) -> dict[str, Any]:
    """What the node's own runtime has, ``SystemdCgroup`` above all, with our program."""
    place = ("plugins", _PLUGINS[data["version"]], "containerd", "runtimes", "runc")
    made: dict[str, Any] = copy.deepcopy(look(data, place) or {})
    if made.get("runtime_type", _SHIM) != _SHIM:
        made = {}
    options = made.pop("options", {})
    return {**made, "runtime_type": _SHIM, "options": {**options, "BinaryName": program}}
