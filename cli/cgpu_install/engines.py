"""Engines and units to which cgpu can be added. Design: docs/design/cli.md."""

from __future__ import annotations

import os
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env import CgpuError
from cgpu_env.errors import format_suggestion, printable
from cgpu_install import containerd, dockerd, entry, json_text, toml_text
from cgpu_install.entry import NAME, Default, Entry
from cgpu_install.machine import BIN_DIR, BOOTED
from cgpu_install.tree import get_value, with_path
from cgpu_node.facts import engines
from cgpu_node.facts.engines import EngineConfig, config_of
from cgpu_node.settings.config import CONFIG_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cgpu_install.machine import Machine
    from cgpu_node.facts.engines import ContainerEngine

RUNTIME, HOOK, SERVER = "cgpu-runtime", "cgpu-hook", "cgpud"
NVIDIA = "/etc/nvidia-container-runtime/config.toml"
# A list of runtimes to try. With others behind ours, containers would have no cap if our file were
# missing.
_NVIDIA = EngineConfig(NVIDIA, "toml", ("nvidia-container-runtime", "runtimes"), (), replaces=True)
HOOKS = "/usr/share/containers/oci/hooks.d"
UNITS = "/etc/systemd/system"
# Folders of units in distributions' packages. A unit of the same name in UNITS takes precedence.
PACKAGED_UNITS = ("/lib/systemd/system", "/usr/lib/systemd/system")
SERVICE, MOUNT, SOCKET = "cgpud.service", "run-cgpu.mount", "cgpud-metrics.socket"
# The target with which systemd starts each unit.
WANTED_BY = {
    SERVICE: "multi-user.target",
    MOUNT: "multi-user.target",
    SOCKET: "sockets.target",
}


class File(NamedTuple):
    """A file of a machine, and how cgpu is added to it and removed from it.

    ``add`` and ``take`` get the file's text (empty if there is no file) and the path of
    ``program``. If ``take`` returns None, the file is removed. ``default`` is the setting that
    names the engine's default runtime; None: there is none. ``check`` raises if the change would
    harm the engine.
    """

    path: str
    program: str
    add: Callable[[str, str], str]
    take: Callable[[str, str], str | None]
    default: Default | None = None
    check: Callable[[Machine], None] = lambda _: None

    def remove_ours(self, text: str, before: object) -> str | None:
        """Return ``text`` after ``take``; a default that names ours becomes ``before`` again."""
        taken = self.take(text, self.program)
        return self.default.restore(taken, before) if taken and self.default else taken

    def is_default(self, machine: Machine) -> bool:
        """Whether the file names our runtime as the default.

        Raises:
            CgpuError: the file is not understood.
        """
        try:
            return (
                self.default is not None
                and self.default.read_runtime(machine.read_text(self.path)) == NAME
            )
        except CgpuError as error:
            raise with_path(self.path, error) from None


class Engine(NamedTuple):
    """Something that makes containers, or starts cgpud.

    Attributes:
        name: its name on the command line.
        files: returns the files that name cgpu, on a machine.
        found: returns whether a machine has the engine.
        then: commands that make it read what was changed.
        automatic: whether it is installed if it is found; otherwise only by name.
        links: programs of cgpu that it starts.
        units: the units that systemd should start with the machine.
        undone: commands after cgpu was removed; none: the same as ``then``.
        earlier: makes the file that named cgpu before, if that may be another one today.
        notes: returns what the administrator still has to do.
    """

    name: str
    files: Callable[[Machine], list[File]]
    found: Callable[[Machine], bool]
    then: Sequence[str]
    automatic: bool = True
    links: Sequence[str] = (RUNTIME, HOOK)
    units: Sequence[str] = ()
    undone: Sequence[str] = ()
    earlier: Callable[[Machine, str], File] | None = None
    notes: Callable[[Machine], Iterable[str]] = lambda _: ()


_FORMATS: dict[str, entry.Format] = {"json": json_text, "toml": toml_text}
_DOCKER_DEFAULT = Default(json_text, lambda _: dockerd.DEFAULT, dockerd.check_default)
_CONTAINERD_DEFAULT = Default(toml_text, containerd.default_place, containerd.check_default)


def read_shipped(name: str) -> str:
    """Return the text of a file that comes with cgpu."""
    return (resources.files("cgpu_install") / "files" / name).read_text("utf-8")


def _render_shipped(name: str, program: str) -> str:
    """Return a file that is cgpu's alone, with the folder of its programs."""
    return read_shipped(name).replace(f"{BIN_DIR}/cgpu", f"{os.path.dirname(program)}/cgpu")


def _make_file(config: EngineConfig, machine: Machine, program: str = RUNTIME) -> File:
    """Return the file of ``config``, which names a program of cgpu on ``machine``."""
    kind = _make_entry(config)
    add, take = partial(entry.add_entry, kind), partial(entry.remove_entry, kind)
    return File(config.path, machine.program_path(program), add, take)


def _make_entry(config: EngineConfig) -> Entry:
    form = _FORMATS[config.format]

    def make_value(_: dict[str, Any], program: str) -> object:
        if config.shipped:
            return get_value(form.parse(_render_shipped(config.shipped, program)), config.keys)
        value: object = program if config.program else [program]
        for key in reversed(config.program):
            value = {key: value}
        return value

    whole = partial(_render_shipped, config.shipped) if config.shipped else None
    return Entry(form, config.keys, config.program, make_value, config.replaces, whole)


def _list_docker_files(machine: Machine) -> list[File]:
    file = _make_file(config_of("docker"), machine)
    return [file._replace(default=_DOCKER_DEFAULT, check=dockerd.check_runtimes)]


def _make_containerd_file(machine: Machine, path: str) -> File:
    program, default = machine.program_path(RUNTIME), _CONTAINERD_DEFAULT
    return File(path, program, containerd.add_runtime, containerd.remove_runtime, default)


def _list_hook_files(machine: Machine, *stages: str) -> list[File]:
    names = [f"cgpu-{stage}.json" for stage in stages]
    configs = [EngineConfig(f"{HOOKS}/{n}", "json", ("hook",), ("path",), n) for n in names]
    return [_make_file(config, machine, HOOK) for config in configs]


def unit_path(name: str, machine: Machine) -> str:
    """Return the path of a unit of ours: a package's unit, if it is what we would write."""
    wanted = _render_shipped(name, machine.program_path(SERVER))
    packaged = (f"{folder}/{name}" for folder in PACKAGED_UNITS)
    own = f"{UNITS}/{name}"
    if machine.has(own):
        return own
    return next((path for path in packaged if machine.read_text(path) == wanted), own)


def _make_unit_file(name: str, mark: str, machine: Machine) -> File:
    path = unit_path(name, machine)

    def add_unit(text: str, program: str) -> str:
        if text and mark not in text:
            raise CgpuError(f"expected no such unit, or cgpu's with {mark.strip()} in it")
        return _render_shipped(name, program)

    def remove_unit(text: str, _: str) -> str | None:
        return None if mark in text and path.startswith(UNITS) else text

    return File(path, machine.program_path(SERVER), add_unit, remove_unit)


def _unless_booted(sentence: str) -> Callable[[Machine], Iterable[str]]:
    """Return a note if no systemd runs to start units; none under another root."""
    what = f"systemd does not run here{sentence}"
    return lambda machine: () if machine.root or machine.has(BOOTED) else (what,)


def _make_engine(row: ContainerEngine, config: EngineConfig) -> Engine:
    engine = Engine(
        row.name,
        lambda m: [_make_file(config, m)],
        lambda m: m.has(*row.paths) or any(map(m.has_program, row.programs)),
        row.commands,
    )
    return engine._replace(**_SPECIAL.get(row.name, {}))


# What the table of engines lacks, because these engines also take a default runtime.
_SPECIAL: dict[str, dict[str, Any]] = {
    "docker": {"files": _list_docker_files},
    "containerd": {
        "files": lambda m: [_make_containerd_file(m, path) for path in containerd.find_files(m)],
        "earlier": _make_containerd_file,
        "notes": containerd.list_notes,
    },
}

ENGINES: tuple[Engine, ...] = (
    *(_make_engine(row, row.config) for row in engines.ENGINES if row.config),
    Engine("nvidia", lambda m: [_make_file(_NVIDIA, m)], lambda m: m.has(NVIDIA), ()),
    Engine(
        "systemd",
        lambda m: [
            _make_unit_file(SERVICE, "/cgpud ", m),
            _make_unit_file(MOUNT, "Where=/run/cgpu", m),
        ],
        lambda m: m.has(BOOTED, "/lib/systemd/systemd", "/usr/lib/systemd/systemd"),
        # The mount is made now if its mount point is free, otherwise at boot.
        ("systemctl daemon-reload", f"systemctl start {MOUNT} {SERVICE}"),
        links=(SERVER,),
        units=(SERVICE, MOUNT),
        undone=(f"systemctl stop {SERVICE}", "systemctl daemon-reload"),
        notes=_unless_booted(f": the first container starts {SERVER}"),
    ),
    Engine(
        "metrics",
        lambda m: [_make_unit_file(SOCKET, f"Service={SERVICE}", m)],
        lambda _: False,
        (
            "systemctl daemon-reload",
            f"systemctl stop {SERVICE}",  # a socket is passed to it when it starts
            f"systemctl start {SOCKET} {SERVICE}",
        ),
        automatic=False,
        links=(SERVER,),
        units=(SOCKET,),
        undone=(
            f"systemctl stop {SOCKET}",
            "systemctl daemon-reload",
            f"systemctl try-restart {SERVICE}",
        ),
        notes=_unless_booted(
            f", so {SOCKET} serves no metrics: name an address, [server] metrics in {CONFIG_PATH};"
            f" the {SERVER} that the first container starts serves it"
        ),
    ),
    Engine(
        "podman-hooks",
        lambda m: _list_hook_files(m, "precreate"),
        lambda _: False,
        (),
        automatic=False,
    ),
    Engine(
        "crio-hooks",
        lambda m: _list_hook_files(m, "prestart", "poststop"),
        lambda _: False,
        ("systemctl try-restart crio",),
        automatic=False,
    ),
)


_ONE_OF = ("podman-hooks", "crio-hooks")  # podman would start both


def select_engines(names: Sequence[str]) -> list[Engine]:
    """Return the engines of these names.

    Raises:
        CgpuError: a name is unknown, or two engines would do the same.
    """
    table = {engine.name: engine for engine in ENGINES}
    for name in names:
        if name not in table:
            allowed = f"expected one of {', '.join(table)}{format_suggestion(name, table)}"
            raise CgpuError(f"{printable(name)}: {allowed}")
    if set(_ONE_OF) <= set(names):
        raise CgpuError(f"{' and '.join(_ONE_OF)}: expected one, for they share a directory")
    return [table[name] for name in dict.fromkeys(names)]
