"""``cgpu install`` and ``cgpu uninstall``: add cgpu to container engines, and remove it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from cgpu_cli.commands.completers import ENGINE_NAMES, ENGINES, set_completer
from cgpu_env import CgpuError
from cgpu_node.paths import ROOT_STATE, state_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from cgpu_install.engines import Engine
    from cgpu_install.journal import Journal
    from cgpu_install.machine import Change, Machine
    from cgpu_install.plan import InstallPlan

_SHOWN = 5
_NONE = "nothing to change"
_NAMES = ENGINE_NAMES.replace(" ", ", ")
_SECONDS, _STEP = 30, 0.1  # for dockerd, which rereads its file some time after the command
_ID = 128  # characters, at most, of a container's id


class Install:
    """Add cgpu to this machine's container engines; running it again repairs what is missing."""

    name = "install"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engines and the options."""
        _common_arguments(parser, "those that are found")
        parser.add_argument(
            "--default",
            action="store_true",
            help="make cgpu the default runtime of docker and containerd",
        )
        parser.add_argument(
            "--bin-dir", metavar="DIR", help="where engines find the programs: /usr/bin"
        )

    def run(self, given: argparse.Namespace) -> int:
        """Make the changes, all or nothing."""
        from cgpu_install.engines import select_engines
        from cgpu_install.machine import BOOTED
        from cgpu_install.plan import PROGRAMS, detect_engines, plan_install

        with _require_rights(given, self.name):
            job = _make_job(given, given.bin_dir)
            engines = (
                select_engines(given.engines) if given.engines else detect_engines(job.machine)
            )
            if not engines:
                raise CgpuError("no container engine found", hint=f"name one: {_NAMES}")
            plan = plan_install(
                *(job.machine, engines, job.journal),
                forgiving=not given.engines,
                is_default=given.default,
            )
        if given.dry_run:
            return _print_diff(plan)
        os.umask(0o022)
        job.journal.install(plan.changes, job.machine.bin_dir)
        unread = [engine for engine in engines if engine.name in job.journal.unread]
        _print_report(plan, unread if given.now else _select_changed(plan, engines), given)
        if given.now and job.machine.has(BOOTED):
            job.journal.mark_read([PROGRAMS, *(engine.name for engine in engines)])
        return 0


class Uninstall:
    """Undo the installation: restore every file as it was before."""

    name = "uninstall"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engines and the options."""
        _common_arguments(parser, "all of them")

    def run(self, given: argparse.Namespace) -> int:
        """Undo the changes, all or nothing."""
        from cgpu_install import dockerd
        from cgpu_install.engines import ENGINES, select_engines
        from cgpu_install.machine import BOOTED
        from cgpu_install.plan import PROGRAMS, is_last, plan_uninstall
        from cgpu_node import sealed

        with _require_rights(given, self.name):
            job = _make_job(given, None)
            engines = select_engines(given.engines) if given.engines else list(ENGINES)
            plan = plan_uninstall(job.machine, engines, job.journal)
            if any(engine.name == "docker" for engine in engines):
                dockerd.check_unnamed(job.machine)
        if given.dry_run:
            return _print_diff(
                plan, _NONE if job.journal.list_engines() else f"{_NONE}: nothing is installed"
            )
        os.umask(0o022)

        def check_idle() -> None:
            if not given.root:
                _check_idle(state_path(given.state_dir))

        check_idle()
        if given.now and job.machine.has(BOOTED) and _is_dockers_default(engines):
            _switch_to_runc(job, plan, state_path(given.state_dir))
            plan = plan_uninstall(job.machine, engines, job.journal)
        gone = [engine.name for engine in engines]
        everything = is_last(engines, job.journal)
        gone += [PROGRAMS] if everything else []
        # Check again: until our programs are gone, an engine can make containers that need them.
        job.journal.uninstall(plan.changes, gone, check_idle)
        if everything and not given.root:
            state_dir = state_path(given.state_dir)
            plan.notes.extend(_end_server(state_dir))
            if state_dir == ROOT_STATE:  # no other directory has overlays
                sealed.unmount_overlays(state_dir)
        restarts = not (given.root or given.now) and _is_dockers_default(engines)
        undone = [
            _with_undo_commands(engine, restarts=restarts)
            for engine in _select_changed(plan, engines)
        ]
        if restarts and job.machine.has(BOOTED):
            plan.notes.append(f"{dockerd.RESTART}: {dockerd.ENDS}")
        _print_report(plan, undone, given)
        return 0


class _Job(NamedTuple):
    machine: Machine
    journal: Journal


def _common_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    engines = parser.add_argument(
        "engines", metavar="ENGINE", nargs="*", help=f"of {_NAMES}; without any: {default}"
    )
    set_completer(engines, ENGINES)
    parser.add_argument("--dry-run", action="store_true", help="show a diff and change nothing")
    parser.add_argument(
        "--now", action="store_true", help="also run the commands that make engines read it"
    )
    parser.add_argument(
        "--root", metavar="DIR", type=_parse_root, help="change the tree of files below DIR instead"
    )


def _parse_root(word: str) -> str:
    """Return a directory; empty if it is this machine's own root."""
    return os.path.realpath(word).rstrip("/")


def _make_job(given: argparse.Namespace, bin_dir: str | None) -> _Job:
    from cgpu_install.journal import Journal
    from cgpu_install.machine import Machine

    root = given.root or ""
    if root and not os.path.isdir(root):
        raise CgpuError(f"--root {given.root}: no such directory")
    if root and given.now:
        raise CgpuError("--now: the engines of another root do not run here")
    if bin_dir is not None and not bin_dir.startswith("/"):
        raise CgpuError(f"--bin-dir {bin_dir}: expected an absolute path")
    if bin_dir and (odd := re.search(r"[\s%$\"'\\]", bin_dir)):
        what = f"expected no {odd[0]!r} in it, which systemd would not take as it is"
        raise CgpuError(f"--bin-dir {bin_dir}: {what}")
    journal = Journal(Machine(root))
    return _Job(Machine(root, bin_dir.rstrip("/") if bin_dir else journal.bin_dir), journal)


@contextlib.contextmanager
def _require_rights(given: argparse.Namespace, name: str) -> Iterator[None]:
    """Refuse a user who is not root and wants to change this machine, or to see what would change.

    Other users may not read what root installed before, nor some engines' files. ``name``: the
    command.
    """
    from cgpu_install.machine import ClosedError

    hint = f"as root: cgpu {name}"
    is_root = os.geteuid() == 0 or bool(given.root)
    if not is_root and not given.dry_run:
        raise CgpuError("you are not root: --dry-run shows what root would change", hint=hint)
    try:
        yield
    except ClosedError:
        if is_root:
            raise
        what = "you are not root, and only root can read what would change"
        raise CgpuError(what, hint=f"{hint} --dry-run") from None


def _check_idle(state_dir: str) -> None:
    """Refuse while containers run: to end them, engines need our programs and hooks."""
    from cgpu_install import running
    from cgpu_node.shares.registry import Registry

    shares = [entry.id for entry in Registry(state_dir).list_records() if entry.kind != "session"]
    if living := list(dict.fromkeys((*shares, *running.list_containers()))):
        raise CgpuError(f"containers run with cgpu: stop them first: {_format_ids(living)}")


def _format_ids(ids: list[str]) -> str:
    from cgpu_env.errors import printable

    named = ", ".join(printable(id_, _ID) for id_ in ids[:_SHOWN])
    return named + (f" and {len(ids) - _SHOWN} more" if ids[_SHOWN:] else "")


def _is_dockers_default(engines: Iterable[Engine]) -> bool:
    """Whether docker is among ``engines`` and has our runtime as its default."""
    from cgpu_install import dockerd
    from cgpu_install.entry import NAME

    return any(engine.name == "docker" for engine in engines) and dockerd.default_runtime() == NAME


def _switch_to_runc(job: _Job, plan: InstallPlan, state_dir: str) -> None:
    """Make dockerd use runc as its default without a restart, which would end containers.

    Raises:
        CgpuError: dockerd keeps our runtime, or containers were made meanwhile. Its file is
            restored.
    """
    from cgpu_install.plan import plan_runc_default

    change = plan_runc_default(job.machine, plan)
    with contextlib.ExitStack() as undo:
        job.journal.install([change], job.machine.bin_dir)
        undo.callback(_revert_change, job, change)
        _reload_dockerd()
        _check_idle(state_dir)
        undo.pop_all()


def _reload_dockerd() -> None:
    """Make dockerd read its file, and wait until its default runtime is not ours.

    Raises:
        CgpuError: dockerd keeps our runtime.
    """
    from cgpu_install import dockerd
    from cgpu_install.engines import select_engines

    docker = select_engines(["docker"])
    why = f"it has not read {dockerd.FILE} within {_SECONDS} s"
    try:
        _run_commands(_list_commands(docker))
        deadline = time.monotonic() + _SECONDS
        while _is_dockers_default(docker) and time.monotonic() < deadline:
            time.sleep(_STEP)
    except CgpuError as error:
        why = str(error)
    if _is_dockers_default(docker):
        hint = f"mend that, or: cgpu uninstall, then: {dockerd.RESTART}"
        raise CgpuError(f"dockerd's default runtime is still cgpu: {why}", hint=hint)


def _revert_change(job: _Job, change: Change) -> None:
    """Undo ``change`` of dockerd's file, and make dockerd read the file."""
    from cgpu_install.engines import select_engines

    back = change._replace(before=change.after, after=change.before)
    job.journal.install([back], job.machine.bin_dir)
    with contextlib.suppress(CgpuError):  # another error is raised already
        _run_commands(_list_commands(select_engines(["docker"])))


def _with_undo_commands(engine: Engine, *, restarts: bool) -> Engine:
    """Return ``engine`` with the commands to run after cgpu was removed."""
    from cgpu_install import dockerd

    if engine.name == "docker" and restarts:
        return engine._replace(then=(dockerd.RESTART,))
    return engine._replace(then=engine.undone or engine.then)


def _end_server(state_dir: str) -> list[str]:
    """End a server that is not a service, and return what became of it: its files may go next.

    A server with sessions is left running, because it divides the time between them.
    """
    from cgpu_node.shares.registry import Registry
    from cgpu_upgrade import server

    running = server.find_running(state_dir)
    if running.pid is None or running.is_service:
        return []
    who, living = f"cgpud (pid {running.pid})", Registry(state_dir).list_records()
    if living:
        these = _format_ids([entry.id for entry in living])
        return [f"{who} goes on until these sessions end: {these}"]
    if not server.end_server(state_dir, running.pid):
        return [f"{who} does not end: kill -KILL {running.pid}"]
    return [f"{who} has ended, for no container runs"]


def _print_diff(plan: InstallPlan, none: str = _NONE) -> int:
    """Print the diff, and its notes on standard error; if there is no change, also ``none``."""
    from cgpu_install.plan import format_diff

    sys.stdout.writelines(format_diff(plan.changes))
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)
    if not plan.changes:
        print(none, file=sys.stderr)
    return 0


def _select_changed(plan: InstallPlan, engines: Iterable[Engine]) -> list[Engine]:
    changed = {change.engine for change in plan.changes}
    return [engine for engine in engines if engine.name in changed]


def _print_report(plan: InstallPlan, engines: Sequence[Engine], given: argparse.Namespace) -> None:
    """Print what was changed, and run or print the commands that make ``engines`` read it."""
    from cgpu_install.machine import BOOTED, Machine

    for change in plan.changes:
        how = "removed" if change.after is None else "changed" if change.before else "made"
        print(f"{change.path}: {how}")
    for note in plan.notes:
        print(f"note: {note}")
    commands = _list_commands(engines)
    if not plan.changes:
        print(_NONE)
    if not given.root and not Machine().has(BOOTED):
        ways = ", ".join(map(_describe_reload, (e for e in engines if e.then and not e.units)))
        if ways:
            print(f"note: systemd does not run here; to be done by you: {ways}")
        return
    if commands and not given.root and not given.now:
        print("\n  ".join(["to be run now:", *commands]))
    if given.now:
        _run_commands(commands)


def _describe_reload(engine: Engine) -> str:
    """Return how to make an engine read its file without systemd, in words of ``cgpu doctor``."""
    from cgpu_install import dockerd

    if engine.name != "docker":
        return f"restart {engine.name}"
    restarts = dockerd.RESTART in engine.then
    return f"restart dockerd ({dockerd.ENDS})" if restarts else dockerd.SIGNAL


def _list_commands(engines: Iterable[Engine]) -> list[str]:
    """Return the commands that make engines read their files, each command once."""
    return list(dict.fromkeys(command for engine in engines for command in engine.then))


def _run_commands(commands: Sequence[str]) -> None:
    """Run all ``commands``, even if one fails: it may be another engine's."""
    failed = []
    for command in commands:
        print(f"$ {command}", flush=True)
        try:
            done = subprocess.run(shlex.split(command), check=False)
        except OSError as error:
            failed.append(f"{command}: {error.strerror}")
            continue
        if done.returncode != 0:
            failed.append(f"{command}: exit status {done.returncode}")
    if failed:
        hint = "the files are as they should be; see to this, and run it by hand"
        raise CgpuError("; ".join(failed), hint=hint)
