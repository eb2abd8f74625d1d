"""Admits a session for ``cgpu-run``, and becomes its program.

From then on, exit code, signals and job control are the program's own. Design: docs/design/cli.md.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; ``signal`` takes 1.5 ms
import errno
import os
import sys

from cgpu_cli.running import guest, keeper, named_driver, options, visible
from cgpu_cli.running.session import Session, enter_namespace, set_environment, use_library_path
from cgpu_env import parse_request
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import Request, parse_variables, wanted_of
from cgpu_node.facts.node import load_node, refresh_if_lost
from cgpu_node.paths import open_state
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from cgpu_cli.running.options import Options

_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
_WARNING = (
    "cgpu-run: warning: {}, so the cap holds only while the program finds libcuda.so.1 by"
    " LD_LIBRARY_PATH: not with a cleared environment, an absolute path or a set-uid program"
)


def launch_program() -> int:
    """Run the command line of this process; return only if it asks for help or the version."""
    _restore_signals()
    given = options.parse(sys.argv[1:])
    if given.answer is not None:
        print(given.answer, end="")
    else:
        _run_session(given)
    return 0


def _restore_signals() -> None:
    """Undo the interpreter's changes to signals.

    The interpreter ignores two signals, and turns an interrupt into an exception. A signal that was
    ignored before the interpreter started stays ignored.
    """
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def _run_session(given: Options) -> NoReturn:
    environment = _initial_environment()
    try:
        session = _admit_session(given, environment)
    except CgpuError as error:
        message = options.translate_message(str(error), given)
        raise CgpuError(message, hint=error.hint, exit_code=error.exit_code) from None
    starter = None  # where the node's server gives the share back
    if session.is_own:
        starter = keeper.start(session.state_dir, session.directory, session.node.driver_dir)
    set_environment(environment, session)
    umask = os.umask(0o022)  # any user of the session can read what is made from here on
    warning = _enter_session(given, session, environment)
    os.umask(umask)
    for note in session.request.notes:
        print(f"cgpu-run: note: {options.translate_message(note, given)}", file=sys.stderr)
    if warning:
        print(warning, file=sys.stderr)
    if starter is not None:
        _wait_for_child(starter)
    _exec_program(given.program, environment)


def _wait_for_child(child: int) -> None:
    """Wait until a child has ended."""
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return  # SIGCHLD is ignored: the kernel has waited


def _admit_session(given: Options, environment: dict[str, str]) -> Session:
    state_dir = open_state(given.state_dir)
    named_driver.check_conflict(state_dir, given.driver_dir)
    found = refresh_if_lost(
        lambda *, refresh: _prepare_session(given, environment, state_dir, refresh=refresh)
    )
    if found.directory or not found.request.gpus:
        return found
    node, request = found.node, found.request
    pid = os.getpid()
    directory = Registry(state_dir).admit(
        f"run-{os.urandom(4).hex()}",
        "session",
        request,
        node,
        Owner(pid, start_time(pid) or 0, None),
        given.program,
        policy=given.policy,
    )
    notes = (*guest.describe_accounts(given, state_dir, node.driver_dir), *request.notes)
    return Session(directory, state_dir, node, request._replace(notes=notes))


def _prepare_session(
    given: Options, environment: dict[str, str], state_dir: str, *, refresh: bool
) -> Session:
    """Return the session. If it has GPUs but no directory, it is not admitted yet."""
    node = load_node(state_dir, given.driver_dir, refresh=refresh)
    uuids = visible.choose_uuids(environment, node, given.gpus)
    if node.gpus and not uuids:
        notes = _notes_without_gpu(given, environment)
        return Session("", state_dir, node, Request((), 1, high_priority=False, notes=notes))
    given = given._replace(gpus=",".join(uuids) or given.gpus)
    if guest.is_possible(given):
        directory, request = guest.ask_admission(given, node)
        return Session(directory, state_dir, node, request)
    gpus = [gpu.as_gpu for gpu in node.gpus]
    own = parse_request(options.to_variables(given), gpus, has_units=True)
    if own is None:
        raise _no_share_error(given)
    return Session("", state_dir, node, own)


def _notes_without_gpu(given: Options, environment: dict[str, str]) -> tuple[str, ...]:
    """Return the notes for a session without a GPU.

    Raises:
        CgpuError: any GPU would refuse what is asked for.
    """
    note = f"{visible.VISIBLE}={printable(environment[visible.VISIBLE])} leaves no GPU"
    asked = parse_variables(options.to_variables(given), lambda: 0, has_units=True)
    if asked is None:
        raise _no_share_error(given)
    if all(each.whole for each in wanted_of(asked, ())):
        return (note,)
    return note, f"--mem {printable(given.mem)} is not compared with the memory of any GPU"


def _no_share_error(given: Options) -> CgpuError:
    return CgpuError(f"--mem {printable(given.mem)}: expected shares of at least 1 GiB")


def _enter_session(given: Options, session: Session, environment: dict[str, str]) -> str:
    """Make the program find the session's files. Return a warning for the user, or ""."""
    reason = "without namespaces"
    if given.namespaces:
        try:
            enter_namespace(session, environment)
        except OSError as error:
            reason = f"no mount namespace here ({error.strerror})"
            if session.directory and not session.is_own:
                raise CgpuError(reason, hint="--no-namespaces does without") from None
        else:
            return ""
    if not session.directory:
        raise CgpuError(
            f"{session.request.notes[0]}, and cgpu-run cannot hold a program to that: {reason}",
            hint="start it without cgpu-run",
        )
    use_library_path(session, environment)
    return _WARNING.format(reason)


def _initial_environment() -> dict[str, str]:
    """Return our initial environment: the interpreter may have added ``LC_CTYPE`` to its copy."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _exec_program(program: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by the program, which is searched as by ``execvp``."""
    name = program[0]
    folders = [""] if "/" in name else [f"{path}/" for path in os.get_exec_path(environment)]
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in folders:
        try:
            _exec_file(folder + name, program, environment)
        except OSError as error:  # noqa: PERF203 (one of a few directories, once)
            if error.errno not in _ABSENT:
                failure = error
    code = _NOT_FOUND if failure.errno in _ABSENT else _NOT_RUNNABLE
    raise CgpuError(f"{name}: {failure.strerror}", exit_code=code)


def _exec_file(path: str, program: list[str], environment: dict[str, str]) -> None:
    try:
        os.execve(path, program, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", path, *program[1:]], environment)  # a script without "#!"
