"""Builds the server from its parts, and runs it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence

from cgpu_env import CgpuError
from cgpu_env.logline import locate_error
from cgpu_native.arbitration import Arbitration
from cgpu_node import installation
from cgpu_node.paths import ROOT_STATE, default_state_dir, open_state
from cgpu_node.shares.registry import Registry
from cgpu_server.audit.auditor import Audit
from cgpu_server.control.server_lock import ServerLock
from cgpu_server.daemon import Daemon
from cgpu_server.journal import is_open, log, open_log
from cgpu_server.metrics.exporter import Exporter
from cgpu_server.service import inherit_socket, is_service
from cgpu_server.state.arbiters import Arbiters
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.mounter import mount_for_server
from cgpu_server.tree.mounts import unmount_tree

_FIRST_FD = 3
_PATIENCE = 2.0  # seconds for a lock; no client gets an answer meanwhile


def run_server(given: argparse.Namespace, words: Sequence[str] | None) -> None:
    """Serve until stopped; return at once if another server serves already.

    Args:
        given: the command line.
        words: the words that it was parsed from; None: the arguments of this process.

    Raises:
        CgpuError: it cannot serve. The log has the reason too, because perhaps nobody reads stderr.
    """
    metrics = inherit_socket("metrics")
    _detach_process(metrics, from_session=given.idle_exit is not None)
    try:
        _serve_until_stopped(given, metrics, sys.argv[1:] if words is None else words)
    except CgpuError as error:
        if is_open():
            log.error("server_fails", error=error, do=error.hint or "mend it and start cgpud")
        raise
    except Exception as error:
        if is_open():
            what = f"{error!r} at {locate_error(error)}"
            log.error("server_fails", error=what, do="report this line")
        raise


def _detach_process(kept: socket.socket | None, *, from_session: bool) -> None:
    """Close all inherited descriptors except that of ``kept``, and leave the session."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= _FIRST_FD and (kept is None or int(name) != kept.fileno()):
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    os.umask(0o077)
    if from_session:
        with contextlib.suppress(OSError):  # we lead a session already
            os.setsid()


def _serve_until_stopped(
    given: argparse.Namespace, metrics: socket.socket | None, words: Sequence[str]
) -> None:
    folder = open_state(given.state_dir)
    driver_dir = given.driver_dir and os.path.abspath(given.driver_dir)
    log_path = given.log and os.path.abspath(given.log)
    tree = _tree_path(given.tree, folder)
    if given.mount_tree or given.unmount_tree:
        _change_mount(folder, tree, mounted=given.mount_tree)
        return
    started_in = os.getcwd()
    os.chdir("/")
    lock = ServerLock.acquire(folder, replace=given.replace)
    if lock is None:
        print(f"cgpud: another one serves {folder} already", file=sys.stderr)
        return
    try:
        open_log(log_path)
    except OSError as error:
        raise CgpuError(f"{log_path}: {error.strerror}") from None
    arbiters = Arbiters(Arbitration.start, Arbitration.join)
    state = ServerState(Registry(folder, patience=_PATIENCE), arbiters, driver_dir)
    audit = Audit(state)
    exporter = Exporter(state, audit, metrics)

    def follow_refresh() -> None:
        audit.utilisation.count(state.records)
        exporter.follow(metrics_address(given.metrics, state.config.metrics, folder))

    state.refreshed = follow_refresh
    daemon = Daemon(state, lock, audit, idle_exit=given.idle_exit, tree=tree)
    audit.start()
    asyncio.run(_run_daemon(daemon, folder))
    audit.close()
    if daemon.restarts and not is_service():  # else systemd starts the next one
        os.chdir(started_in)
        following = _find_next_command(words)
        os.execv(following[0], following)


def _find_next_command(words: Sequence[str]) -> list[str]:
    """Return the command of a server of the installed release, perhaps in another folder."""
    own = installation.own_environment()
    current = own and installation.find_installation(own).current_environment
    if current == own:
        return [sys.executable, *sys.orig_argv[1:]]
    return [f"{current}/bin/python", "-I", "-m", "cgpu_server.main", *words]


def metrics_address(given: str | None, configured: str | None, state: str) -> str | None:
    """Return the address for metrics. Only the node's own server uses the configured one.

    A user's server, or one of another state directory, must not take that port.
    """
    return given or (configured if state == os.path.realpath(ROOT_STATE) else None)


def _change_mount(state: str, tree: str | None, *, mounted: bool) -> None:
    if tree is None:
        raise CgpuError(f"{state} has no control tree: expected --tree DIR")
    if mounted:
        mount_for_server(state, tree)
    else:
        unmount_tree(tree)


def _tree_path(given: str | None, state: str) -> str | None:
    """Return the path of the control tree; None if the state directory is not the default."""
    if given is not None:
        return os.path.abspath(given) if given else None
    return f"{state}_km" if state == os.path.realpath(default_state_dir()) else None


async def _run_daemon(daemon: Daemon, folder: str) -> None:
    loop = asyncio.get_running_loop()
    # SIGHUP too, because the FUSE library would handle it otherwise.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, daemon.stop)
    log.info("serving", path=folder, pid=os.getpid())
    await daemon.run()
    log.info("ended", pid=os.getpid())
    log.flush(everything=True)
