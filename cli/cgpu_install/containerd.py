"""containerd: cgpu is one more runtime of its CRI plugin, made like the runtime ``runc``."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_install import entry, running, toml_text
from cgpu_install.tree import get_value, with_path
from cgpu_node.facts.engines import config_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_install.machine import Machine

MAIN = config_of("containerd").path
_SHIM = "io.containerd.runc.v2"
# The pod's annotations that containerd passes to its containers' configurations: the allocation,
# and those that published tools read. A star matches no slash.
_PASSED = "pod_annotations"
_DECISIONS = (
    "cgpu/*",
    "scheduler.framework.gpushare.*",
    "gpushare.alibabacloud.com/*",
    "ALIYUN_COM_GPU_*",
)
# Version of the configuration: name of the plugin that has the runtimes.
_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_CONTAINERD = re.compile(r"([^\0]*/)?containerd\0")
_OPTION = re.compile(r"\0--?c(?:onfig)?[=\0]([^\0]+)")
_OF_DOCKERD = "/containerd/containerd.toml"  # below the folder that dockerd runs in
_SECONDS = 10
_FRESH = 2  # every containerd from 1.3 to 2.x reads it
# In these folders a distribution writes containerd's file at each start, from a template that is
# not TOML. The template's name depends on the version of the file.
_MADE_BY = {f"/var/lib/rancher/{name}/agent/etc/containerd": name for name in ("k3s", "rke2")}
_TEMPLATES = {2: "config.toml.tmpl", 3: "config-v3.toml.tmpl"}


class UnusedError(CgpuError):
    """The file is valid, but containerd would not read cgpu's settings in it."""


def find_files(machine: Machine) -> list[str]:
    """Return the file that takes effect: the last one read that has a section of the plugin.

    If there is none, it is the main file. Before 2.1 the whole section comes from that file.
    """
    having = [
        name for name, data in _read_files(machine).items() if _has_plugin(data) and name != MAIN
    ]
    return having[-1:] or [MAIN]


def find_unconfigured(machine: Machine) -> Iterator[tuple[int, str]]:
    """Yield pid and main file of root's containerds that read another file, without our runtime.

    The containerd that dockerd starts is left out: it makes no pods.
    """
    for folder in running.find_processes("containerd"):
        command = running.read_text(f"{folder}/cmdline")
        given = _OPTION.search(command)
        if not _CONTAINERD.match(command) or not given or running.read_user(folder):
            continue
        path = os.path.realpath(f"{folder}/cwd/{given[1]}" if given[1][0] != "/" else given[1])
        is_other = path != os.path.realpath(MAIN) and not path.endswith(_OF_DOCKERD)
        if is_other and not _names_ours(machine, path):
            yield int(os.path.basename(folder)), path


def dump_configurations() -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield pid and settings of the CRI plugin, as they are in force, of root's containerds.

    The containerd that dockerd starts is left out: it makes no pods. So is one that does not show
    its settings.
    """
    for folder in running.find_processes("containerd"):
        command = running.read_text(f"{folder}/cmdline")
        if not _CONTAINERD.match(command) or running.read_user(folder):
            continue
        given = _OPTION.search(command)
        path = given[1] if given else MAIN
        if path.endswith(_OF_DOCKERD):
            continue
        words = [f"{folder}/exe", "--config", path, "config", "dump"]
        try:
            done = subprocess.run(
                words,
                cwd=f"{folder}/cwd",
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
            )
            plugins = toml_text.parse(done.stdout).get("plugins", {})
        except (OSError, subprocess.SubprocessError, CgpuError):
            continue
        # Containerd 2 shows both: what is left in the older one is about streams.
        newest_first = [_PLUGINS[version] for version in sorted(_PLUGINS, reverse=True)]
        found = next((plugins[name] for name in newest_first if name in plugins), None)
        if isinstance(found, dict):
            yield int(os.path.basename(folder)), found


def _names_ours(machine: Machine, path: str) -> bool:
    """Whether a main file, or one that it imports, names our runtime."""
    try:
        names = [*_read_files(machine, path)]
    except CgpuError:
        names = [path]
    return any("/cgpu-runtime" in running.read_text(name) for name in names)


def advise_by_hand(machine: Machine, path: str) -> str:
    """Return what to do so that the containerd with this file gets our runtime."""
    folder, name = os.path.split(path)
    if folder not in _MADE_BY:
        mend = f"add the runtime cgpu to {path}, as cgpu install containerd writes it to"
        return f"{mend} {MAIN}, and restart containerd"
    version = 3 if toml_text.parse(machine.read_text(path)).get("version") == 3 else 2  # noqa: PLR2004
    template, maker = f"{folder}/{_TEMPLATES[version]}", _MADE_BY[folder]
    mend = f"add the runtime cgpu to {template}, from which {maker} makes {name}"
    return f"{mend}, as docs/kubernetes.md shows, and restart {maker}"


def list_notes(machine: Machine) -> Iterator[str]:
    """Yield what the administrator still has to do after an installation."""
    for path in (f"{folder}/config.toml" for folder in _MADE_BY):
        if machine.has(path) and "/cgpu-runtime" not in machine.read_text(path):
            yield f"containerd: {advise_by_hand(machine, path)}"


def _read_files(machine: Machine, main: str = MAIN) -> dict[str, dict[str, Any]]:
    """Read the files that containerd reads: the main file, its imports, and their imports in turn.

    /etc/containerd/conf.d is one of them: the default configuration imports it since 2.2.
    """
    pending = [main]
    seen: dict[str, dict[str, Any]] = {}
    while pending:
        name = pending.pop(0)
        if name in seen:
            continue
        try:
            data = seen[name] = toml_text.parse(machine.read_text(name))
            get_value(data, ("plugins", ""))
            pending += _list_imports(machine, name, data)
        except CgpuError as error:
            raise with_path(name, error) from None
    return seen


def _list_imports(machine: Machine, name: str, data: dict[str, Any]) -> list[str]:
    imports = data.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(each, str) for each in imports):
        raise CgpuError("imports: expected a list of paths")
    folder = os.path.dirname(name)
    return [path for each in imports for path in machine.find_paths(os.path.join(folder, each))]


def add_runtime(text: str, program: str) -> str:
    """Return the text with the runtime ``cgpu`` in it."""
    data = toml_text.parse(text)
    if not data:
        text = toml_text.set_value(text, ("version",), _FRESH)
        data = toml_text.parse(text)
    disabled = data.get("disabled_plugins")
    if isinstance(disabled, list) and any(name in disabled for name in ("cri", *_PLUGINS.values())):
        raise UnusedError("disabled_plugins switches CRI off: nobody would use a runtime here")
    return _pass_annotations(entry.add_entry(_build_entry(data), text, program))


def remove_runtime(text: str, program: str) -> str | None:
    """Return the text without the runtime ``cgpu``."""
    data = toml_text.parse(text)
    return entry.remove_entry(_build_entry(data), text, program) if _find_plugin(data) else text


def default_place(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the key of the runtime for pods that name none; empty for an unknown version."""
    return ("plugins", _find_plugin(data), "containerd", "default_runtime_name")


def check_default(machine: Machine) -> None:
    """Refuse a default runtime that would overrule ours, in any file that containerd reads.

    Raises:
        CgpuError: a file has such a default.
    """
    for name, data in _read_files(machine).items():
        for plugin in _PLUGINS.values():
            _check_default(name, data, ("plugins", plugin, "containerd"))


def _check_default(name: str, data: dict[str, Any], section: tuple[str, ...]) -> None:
    try:
        place = (*section, "default_runtime_name")
        entry.check_plain(place, get_value(data, place))
        older = (*section, "default_runtime", "runtime_type")  # until 1.7
        kind = get_value(data, older)
    except CgpuError as error:
        raise with_path(name, error) from None
    if kind:
        sentence = f"{name}: {'.'.join(older)} = {printable(str(kind))}: expected none"
        raise CgpuError(f"{sentence}, because it overrides {place[-1]}")


def _has_plugin(data: dict[str, Any]) -> bool:
    return any(get_value(data, ("plugins", name)) is not None for name in _PLUGINS.values())


def _find_plugin(data: dict[str, Any]) -> str:
    """Return the plugin for the version that the file states; empty for an unknown version."""
    version = data.get("version", 1)
    return _PLUGINS.get(version, "") if isinstance(version, int) else ""


def _require_plugin(data: dict[str, Any]) -> str:
    plugin = _find_plugin(data)
    if not plugin:
        allowed = "expected 2 or 3; see `containerd config migrate`"
        raise CgpuError(f"version = {printable(str(data.get('version', 1)))}: {allowed}")
    return plugin


def _build_entry(data: dict[str, Any]) -> entry.Entry:
    place = ("plugins", _require_plugin(data), "containerd", "runtimes", "cgpu")
    return entry.Entry(toml_text, place, ("options", "BinaryName"), _like_runc)


def _like_runc(data: dict[str, Any], program: str) -> dict[str, Any]:
    """Return the node's own runtime with our program. Its ``SystemdCgroup`` above all must stay."""
    place = ("plugins", _PLUGINS[data["version"]], "containerd", "runtimes", "runc")
    made: dict[str, Any] = copy.deepcopy(get_value(data, place) or {})
    if made.get("runtime_type", _SHIM) != _SHIM:
        made = {}
    options = made.pop("options", {})
    return {
        **made,
        "runtime_type": _SHIM,
        _PASSED: _with_ours(made.get(_PASSED)),
        "options": {**options, "BinaryName": program},
    }


def _with_ours(passed: object) -> list[object]:
    """Return a runtime's list of annotations with ours, which carry allocations."""
    if not isinstance(passed, list | None):
        raise CgpuError(f"{_PASSED} = {printable(str(passed))}: expected a list")
    return [*(passed or []), *(each for each in _DECISIONS if each not in (passed or []))]


def _pass_annotations(text: str) -> str:
    """Return the text with a runtime ``cgpu`` that gets a pod's allocation; earlier ones do not."""
    data = toml_text.parse(text)
    place = (*_build_entry(data).place, _PASSED)
    there = get_value(data, place)
    wanted = _with_ours(there)
    return text if there == wanted else toml_text.set_value(text, place, wanted)
