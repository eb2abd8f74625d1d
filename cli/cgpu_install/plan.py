"""Finds out what installing and uninstalling would change. It changes nothing itself."""

from __future__ import annotations

import contextlib
import difflib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cgpu_env import CgpuError
from cgpu_install import dockerd, json_text
from cgpu_install.containerd import UnusedError
from cgpu_install.engines import (
    ENGINES,
    HOOK,
    RUNTIME,
    SERVER,
    UNITS,
    WANTED_BY,
    Engine,
    File,
    unit_path,
)
from cgpu_install.journal import Journal
from cgpu_install.machine import Change, Content, Link, Machine
from cgpu_install.tree import with_path
from cgpu_node import code_bundle
from cgpu_node.trust import check_source

PROGRAMS = "programs"  # the links that all engines share, as an engine of their own
# Folder of a distribution's package of cgpu. Links that lead there are the package's.
PACKAGED = "/usr/lib/cgpu"


class InstallPlan(NamedTuple):
    """Changes in the order in which they are made, and notes on engines without changes."""

    changes: list[Change]
    notes: list[str]


def plan_install(
    machine: Machine,
    engines: Sequence[Engine],
    journal: Journal,
    *,
    forgiving: bool,
    is_default: bool = False,
) -> InstallPlan:
    """Plan ``cgpu install``.

    Args:
        machine: the machine to change.
        engines: the engines to change.
        journal: what was changed before.
        forgiving: whether an engine that could not use cgpu is left out.
        is_default: whether containers that name no runtime get ours, if an engine can do that.

    Raises:
        CgpuError: a file is not understood, or no engine can have a default runtime; then nothing
            is changed.
    """
    changes, notes, used, files = [], [], [], []
    for engine in engines:
        try:
            its = engine.files(machine)
            made = [_plan_addition(machine, engine, f, journal, is_default=is_default) for f in its]
        except UnusedError as error:
            if not forgiving:
                raise
            notes.append(f"{engine.name}: left alone: {error}")
            continue
        enabled = [_plan_unit_link(machine, engine, unit, journal) for unit in engine.units]
        changes += [*made, *enabled]
        used.append(engine)
        notes += engine.notes(machine)
        files += its
    if is_default and not any(file.default for file in files):
        given = ", ".join(engine.name for engine in engines)
        raise CgpuError(f"--default: expected docker or containerd among the engines, not {given}")
    names = dict.fromkeys(name for engine in used for name in engine.links)
    links = [_plan_program_link(machine, name, journal) for name in names]
    needed = [c for c in (*links, *changes) if c.before != c.after]
    for change in needed:
        machine.check_folder(change.path)
    return InstallPlan(needed, notes)


def plan_uninstall(machine: Machine, engines: Sequence[Engine], journal: Journal) -> InstallPlan:
    """Plan ``cgpu uninstall``: restore files. If others changed a file, only remove cgpu from it.

    Raises:
        CgpuError: a file is not understood; then nothing is changed.
    """
    changes = []
    for engine in engines:
        files = {file.path: file for file in engine.files(machine)}
        if engine.earlier:
            earlier = partial(engine.earlier, machine)
            files = {path: earlier(path) for path in journal.list_paths(engine.name)} | files
        paths = dict.fromkeys((*files, *journal.list_paths(engine.name)))
        changes += [_plan_removal(machine, engine.name, p, files.get(p), journal) for p in paths]
    if is_last(engines, journal):
        links = dict.fromkeys((*journal.list_paths(PROGRAMS), *_made_by_hand(machine)))
        changes += [_plan_unlink(machine, path, journal) for path in links]
    return InstallPlan([c for c in changes if c.before != c.after], [])


def plan_runc_default(machine: Machine, plan: InstallPlan) -> Change:
    """Return the change that makes runc dockerd's default before its file is restored.

    When dockerd reloads a file that names no default, it keeps the old one.
    """
    before, path = machine.read(dockerd.FILE), dockerd.FILE
    try:
        after = json_text.set_value(machine.read_text(path), dockerd.DEFAULT, "runc").encode()
    except CgpuError as error:
        raise with_path(path, error) from None
    undo = next((change.after for change in plan.changes if change.path == path), before)
    return Change("docker", path, before, after, undo)


def is_last(engines: Sequence[Engine], journal: Journal) -> bool:
    """Whether no other engine than these has cgpu."""
    return journal.list_engines() <= {PROGRAMS, *(engine.name for engine in engines)}


def detect_engines(machine: Machine) -> list[Engine]:
    """Return the engines that a machine has."""
    return [engine for engine in ENGINES if engine.automatic and engine.found(machine)]


def format_diff(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the changes as a unified diff. For a link, its target is compared."""
    for change in changes:
        before, after = _split_lines(change.before), _split_lines(change.after)
        old = change.path if change.before is not None else "/dev/null"
        new = change.path if change.after is not None else "/dev/null"
        for line in difflib.unified_diff(before, after, old, new):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _split_lines(content: Content) -> list[str]:
    if isinstance(content, Link):
        return [f"link to {content.target}\n"]
    return (content or b"").decode(errors="replace").splitlines(keepends=True)


def _plan_addition(
    machine: Machine, engine: Engine, file: File, journal: Journal, *, is_default: bool
) -> Change:
    before, text = machine.read(file.path), machine.read_text(file.path)
    try:
        after = file.add(text, file.program)
        if after != text:
            file.check(machine)
        if is_default and file.default:
            file.default.check(machine)
            after = file.default.set_runtime(after)
        saved = journal.saved.get(file.path)
        if saved is None:
            undo: Content = before
        elif journal.is_untouched(file.path, before):
            undo = journal.read_original(file.path)
        else:
            undo = _encode_text(file.remove_ours(text, _default_before(journal, file)))
    except CgpuError as error:
        raise with_path(file.path, error) from None
    return Change(engine.name, file.path, before, after.encode(), undo)


def _plan_removal(
    machine: Machine, engine: str, path: str, file: File | None, journal: Journal
) -> Change:
    before = machine.read_content(path)
    if journal.is_untouched(path, before):
        after = journal.read_original(path)
    elif file is None or not isinstance(before, bytes):
        after = before  # not as we left it, so it is another's
    else:
        try:
            after = _encode_text(
                file.remove_ours(machine.read_text(path), _default_before(journal, file))
            )
        except CgpuError as error:
            raise with_path(path, error) from None
    return Change(engine, path, before, after, after)


def _default_before(journal: Journal, file: File) -> object:
    """Return the default runtime before cgpu; None if there was none, or it is not known."""
    with contextlib.suppress(CgpuError, UnicodeDecodeError):  # its backup is gone, or damaged
        before = journal.read_original(file.path) if file.path in journal.saved else None
        if file.default and isinstance(before, bytes):
            return file.default.read_runtime(before.decode())
    return None


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _plan_program_link(machine: Machine, name: str, journal: Journal) -> Change:
    """Plan the link by which engines, or systemd, know a program of ours."""
    path, target = machine.program_path(name), _find_program(name)
    before = machine.read_content(path)
    if not machine.root and os.path.realpath(path) == target:
        return Change(PROGRAMS, path, before, before, before)
    return _plan_link(machine, PROGRAMS, path, target, journal)


def _plan_unit_link(machine: Machine, engine: Engine, unit: str, journal: Journal) -> Change:
    path = f"{UNITS}/{WANTED_BY[unit]}.wants/{unit}"
    return _plan_link(machine, engine.name, path, unit_path(unit, machine), journal)


def _plan_link(machine: Machine, engine: str, path: str, target: str, journal: Journal) -> Change:
    before = machine.read_content(path)
    name = os.path.basename(target)
    if before is not None and not _leads_to(before, name):
        raise CgpuError(f"{path}: expected nothing there, or a link to cgpu's own {name}")
    kept = journal.is_untouched(path, before)
    return Change(
        engine, path, before, Link(target), journal.read_original(path) if kept else before
    )


def _leads_to(content: Content, name: str) -> bool:
    return isinstance(content, Link) and os.path.basename(content.target) == name


def _made_by_hand(machine: Machine) -> list[str]:
    """Return the links that are neither in the journal nor a package's."""
    found = []
    for name in (RUNTIME, HOOK):
        path = machine.program_path(name)
        what = machine.read_content(path)
        if isinstance(what, Link) and _leads_to(what, name) and not _is_packaged(path, what):
            found.append(path)
    return found


def _is_packaged(path: str, link: Link) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(path), link.target))
    return target.startswith(f"{PACKAGED}/")


def _plan_unlink(machine: Machine, path: str, journal: Journal) -> Change:
    before = machine.read_content(path)
    if path not in journal.saved:
        return Change(PROGRAMS, path, before, None, None)
    return _plan_removal(machine, PROGRAMS, path, None, journal)


def _find_program(name: str) -> str:
    """Return the path of a program of this installation.

    Raises:
        CgpuError: it is missing, or others could change it.
    """
    folder = sysconfig.get_path("scripts") if name == SERVER else code_bundle.find_programs_folder()
    path = os.path.realpath(f"{folder}/{name}")
    try:
        check_source(path)
    except CgpuError as error:
        hint = "install cgpu as root into a virtual environment where only root can write"
        raise CgpuError(str(error), hint=hint) from None
    return path
