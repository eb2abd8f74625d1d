"""The steps of an upgrade, ordered so that nothing is ever missing.

1. The new environment is created and checked beside the one in use. A failure up to here leaves
   everything as it was.
2. The engines' links are pointed at it, each in one step: it creates containers from now on.
3. The prefix is pointed at it, and ``.back`` at the one that was in use.
4. Its server replaces the running one. If that does not start, everything is undone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_install.engines import HOOK, RUNTIME, SERVER
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import PROGRAMS
from cgpu_node.installation import Installation
from cgpu_upgrade import environment, layouts, living, server, switch
from cgpu_upgrade.environment import Environment
from cgpu_upgrade.server import Running


class Outcome(NamedTuple):
    """The steps that were done, or would be done.

    Attributes:
        before: the release that was in use.
        after: the release that is in use.
        back: the release that ``--back`` leads to; None: there is none.
        containers: how many containers live on, by the release that made them.
        server: the process id of the server; None: none runs.
        output: what ``cgpu install`` printed.
    """

    before: str
    after: str
    back: str | None
    containers: dict[str, int]
    server: int | None
    output: list[str]


def switch_to_source(
    installation: Installation,
    state_dir: str,
    source: str,
    options: Sequence[str],
    *,
    dry: bool,
) -> Outcome:
    """Switch to the release in ``source``.

    Raises:
        CgpuError: that failed; the earlier release is in use.
    """
    with switch.lock_upgrade(installation):
        present = Environment(installation.current_environment)
        made = environment.make_environment(present, installation.prefix, source, options)
        try:
            return _switch_if_fit(installation, made, state_dir, dry=dry)
        finally:
            if installation.current_environment != made.path and not _is_known_to_engines(made):
                made.remove()


def switch_back(installation: Installation, state_dir: str, *, dry: bool) -> Outcome:
    """Switch back to the previous environment.

    Raises:
        CgpuError: there is none, or that failed; the release in use is as before.
    """
    with switch.lock_upgrade(installation):
        if installation.previous_environment is None:
            raise CgpuError(
                f"{installation.back_link} is not there: there is no way back",
                hint="put the release that you want in use: cgpu upgrade WHEEL",
            )
        after = Environment(installation.previous_environment)
        return _switch_if_fit(installation, after, state_dir, dry=dry)


def follow_installed(state_dir: str, *, dry: bool) -> Outcome:
    """Make links, engines and server follow what is installed already, by whatever means.

    Raises:
        CgpuError: a file is not understood, or the server does not start.
    """
    guests = living.list_running(state_dir)
    living.check_containers(guests, layouts.own_layouts())
    living.check_rules(state_dir, layouts.own_layouts())
    before = server.find_running(state_dir)
    output = _tell_engines(_own_cgpu, *(["--dry-run"] if dry else []))
    pid = before.pid
    if not dry:
        pid = server.restart_server(
            state_dir, [sys.executable], VERSION, before, wanted=bool(guests)
        )
    return Outcome(
        before.release or VERSION, VERSION, None, living.count_by_release(guests), pid, output
    )


def _is_known_to_engines(environment: Environment) -> bool:
    """Whether engines start programs from this environment, because going back has failed too."""
    folder = Journal(Machine()).bin_dir
    programs = [os.path.realpath(f"{folder}/{name}") for name in (RUNTIME, HOOK, SERVER)]
    return any(path.startswith(f"{environment.path}/") for path in programs)


def _switch_if_fit(
    installation: Installation, after: Environment, state_dir: str, *, dry: bool
) -> Outcome:
    """Switch to an environment that has passed all checks. ``dry``: only check it."""
    after.check()
    reads = after.read_layouts()
    guests = living.list_running(state_dir)
    living.check_containers(guests, reads)
    living.check_rules(state_dir, reads)
    _tell_engines(after.run_cgpu, "--dry-run")
    if not dry:
        return _switch_environment(installation, after, state_dir)
    before = Environment(installation.current_environment).release
    found = living.count_by_release(guests)
    return Outcome(before, after.release, before, found, None, [])


def _switch_environment(installation: Installation, after: Environment, state_dir: str) -> Outcome:
    switch.make_link(installation)
    before = Environment(installation.current_environment)
    way_back = installation.previous_environment
    guests = living.list_running(state_dir)
    living.check_containers(guests, after.read_layouts())  # others may have come since
    ran = server.find_running(state_dir)
    done: list[Callable[[], object]] = []
    try:
        done.append(lambda: _tell_engines(before.run_cgpu))
        output = _tell_engines(after.run_cgpu)
        done.append(lambda: _undo_use(installation, before, way_back))
        switch.use_environment(installation, after)
        done.append(lambda: _restart_server(before, state_dir, ran, wanted=bool(guests)))
        pid = _restart_server(after, state_dir, ran, wanted=bool(guests))
    except BaseException as error:
        _undo_steps(done)
        if isinstance(error, CgpuError):
            sentence = f"{error}; {before.release} is in use as before"
            raise CgpuError(sentence, hint=error.hint) from None
        raise
    for old in switch.list_older(installation):
        if not living.leads_into(guests, old.path):
            old.remove()
    back = Environment(installation.previous_environment or before.path).release
    return Outcome(
        before.release, after.release, back, living.count_by_release(guests), pid, output
    )


def _undo_steps(done: Sequence[Callable[[], object]]) -> None:
    """Undo each step, even if undoing another one fails.

    Raises:
        BaseException: the first error.
    """
    if done:
        try:
            done[0]()
        finally:
            _undo_steps(done[1:])


def _undo_use(installation: Installation, before: Environment, back: str | None) -> None:
    switch.use_environment(installation, before)
    switch.restore_back(installation, back)


def _restart_server(
    target: Environment, state_dir: str, before: Running, *, wanted: bool
) -> int | None:
    return server.restart_server(
        state_dir, [target.python, "-I"], target.release, before, wanted=wanted
    )


def _own_cgpu(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cgpu_cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)


def _tell_engines(cgpu: Callable[..., subprocess.CompletedProcess[str]], *flags: str) -> list[str]:
    """Run ``cgpu install`` of a release, which repairs what an earlier one has written."""
    journal = Journal(Machine())
    engines = sorted(journal.list_engines() - {PROGRAMS})
    if not engines:
        return []
    done = cgpu("install", *flags, "--bin-dir", journal.bin_dir, *engines)
    if done.returncode != 0:
        raise CgpuError(done.stderr.strip().removeprefix("cgpu: "))
    return [line for line in done.stdout.splitlines() if line != "nothing to change"]
