"""The steps of an upgrade, in the order in which nothing is ever missing.

1. The new environment is created and checked beside the one in use; a failure up to here leaves
   everything as it was.
2. The engines' links are pointed at it, each in one step: it creates containers from now on.
3. The prefix is pointed at it, and ``.back`` at the one that was in use.
4. Its server replaces the running one. If that does not start, everything is undone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_install.engines import HOOK, RUNTIME, SERVER
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import PROGRAMS
from cgpu_upgrade import environment, layouts, living, server, switch
from cgpu_upgrade.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cgpu_node.installation import Installation
    from cgpu_upgrade.server import Running


class Outcome(NamedTuple):
    """The steps that were done, or would be.

    Attributes:
        before: the release that was in use.
        after: the one that is.
        back: the release that ``--back`` leads to; None: there is none.
        containers: how many live on, by the release that made them.
        server: the process id of the server; None: none runs.
        output: what ``cgpu install`` printed.
    """

    before: str
    after: str
    back: str | None
    containers: dict[str, int]
    server: int | None
    output: list[str]


def upgrade(
    installation: Installation,
    state_dir: str,
    source: str,
    options: Sequence[str],
    *,
    dry: bool,
) -> Outcome:
    """Switch to the release in ``source``.

    Raises:
        CgpuError: it cannot be; what was in use is in use.
    """
    with switch.locked(installation):
        present = Environment(installation.current)
        made = environment.make(present, installation.prefix, source, options)
        try:
            _examine(made, state_dir)
            if dry:
                found = living.count(living.guests(state_dir))
                return Outcome(present.release, made.release, present.release, found, None, [])
            return _change(installation, made, state_dir)
        finally:
            if installation.current != made.path and not _is_known_to_engines(made):
                made.remove()


def back(installation: Installation, state_dir: str, *, dry: bool) -> Outcome:
    """Switch back to the previous environment.

    Raises:
        CgpuError: there is none, or it cannot be; what was in use is in use.
    """
    with switch.locked(installation):
        if installation.back is None:
            raise CgpuError(
                f"{installation.back_link} is not there: there is no way back",
                hint="put the release that you want in use: cgpu upgrade WHEEL",
            )
        before, after = Environment(installation.current), Environment(installation.back)
        _examine(after, state_dir)
        if dry:
            found = living.count(living.guests(state_dir))
            return Outcome(before.release, after.release, before.release, found, None, [])
        return _change(installation, after, state_dir)


def follow(state_dir: str, *, dry: bool) -> Outcome:
    """Let links, engines and server be of what is installed already, whoever installed it.

    Raises:
        CgpuError: a file is not understood, or the server does not come up.
    """
    guests = living.guests(state_dir)
    living.check(guests, layouts.own())
    living.check_rules(state_dir, layouts.own())
    before = server.running(state_dir)
    output = _tell_engines(_own_cgpu, *(["--dry-run"] if dry else []))
    pid = before.pid
    if not dry:
        pid = server.restart(state_dir, [sys.executable], VERSION, before, wanted=bool(guests))
    return Outcome(before.release or VERSION, VERSION, None, living.count(guests), pid, output)


def _is_known_to_engines(environment: Environment) -> bool:
    """Return whether programs are started from it, because going back has failed too."""
    folder = Journal(Machine()).bin_dir
    programs = [os.path.realpath(f"{folder}/{name}") for name in (RUNTIME, HOOK, SERVER)]
    return any(path.startswith(f"{environment.path}/") for path in programs)


def _examine(candidate: Environment, state_dir: str) -> None:
    candidate.check()
    reads = candidate.layouts()
    living.check(living.guests(state_dir), reads)
    living.check_rules(state_dir, reads)
    _tell_engines(candidate.cgpu, "--dry-run")


def _change(installation: Installation, after: Environment, state_dir: str) -> Outcome:
    switch.make_link(installation)
    before, way_back = Environment(installation.current), installation.back
    guests = living.guests(state_dir)
    living.check(guests, after.layouts())  # others may have come since
    ran = server.running(state_dir)
    done: list[Callable[[], object]] = []
    try:
        done.append(lambda: _tell_engines(before.cgpu))
        output = _tell_engines(after.cgpu)
        done.append(lambda: _undo_use(installation, before, way_back))
        switch.use(installation, after)
        done.append(lambda: _restart(before, state_dir, ran, wanted=bool(guests)))
        pid = _restart(after, state_dir, ran, wanted=bool(guests))
    except BaseException as error:
        _undo(done)
        if isinstance(error, CgpuError):
            sentence = f"{error}; {before.release} is in use as before"
            raise CgpuError(sentence, hint=error.hint) from None
        raise
    for old in switch.older(installation):
        if not living.leads_into(guests, old.path):
            old.remove()
    back = Environment(installation.back or before.path).release
    return Outcome(before.release, after.release, back, living.count(guests), pid, output)


def _undo(done: Sequence[Callable[[], object]]) -> None:
    """Take back each step, whether or not another one can be.

    Raises:
        BaseException: what went wrong first.
    """
    if done:
        try:
            done[0]()
        finally:
            _undo(done[1:])


def _undo_use(installation: Installation, before: Environment, back: str | None) -> None:
    switch.use(installation, before)
    switch.restore_back(installation, back)


def _restart(of: Environment, state_dir: str, before: Running, *, wanted: bool) -> int | None:
    return server.restart(state_dir, [of.python, "-I"], of.release, before, wanted=wanted)


def _own_cgpu(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cgpu_cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)


def _tell_engines(cgpu: Callable[..., subprocess.CompletedProcess[str]], *flags: str) -> list[str]:
    """Let ``cgpu install`` of a release mend what an earlier one has written."""
    journal = Journal(Machine())
    engines = sorted(journal.engines() - {PROGRAMS})
    if not engines:
        return []
    done = cgpu("install", *flags, "--bin-dir", journal.bin_dir, *engines)
    if done.returncode != 0:
        raise CgpuError(done.stderr.strip().removeprefix("cgpu: "))
    return [line for line in done.stdout.splitlines() if line != "nothing to change"]
