"""Ends every program of cgpu with a status and at most one sentence, never a traceback.

This module is small and imported first. A program's ``work`` imports everything else, so that
``run`` handles an interrupt even while Python still reads files.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from cgpu_env.errors import REFUSED, CgpuError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_STDOUT = 1
_SIGNALLED = 128  # what a shell makes of a signal


def run(name: str, work: Callable[[], int]) -> NoReturn:
    """Do ``work`` and exit with the status that it returns.

    After an interrupt, or if nobody reads the output any more, everything is undone; then the
    program dies of the signal, as shells expect. Any other error becomes a sentence on stderr.

    Args:
        name: the name of the program, which begins each sentence.
        work: all that the program does. A ``CgpuError`` is shown with its hint, and gives the
            status.
    """
    _prepare_output()
    try:
        _hear_interrupts()
        status = _finish_work(work)
    except KeyboardInterrupt:
        _end_by("SIGINT")
    except BrokenPipeError:
        _end_by("SIGPIPE")
    except CgpuError as error:
        status = _print_error(name, str(error), error.hint, error.exit_code)
    except OSError as error:
        hint = "free some space there, and run it again" if error.errno in _FULL else ""
        status = _print_error(name, _format_error(error), hint)
    except MemoryError:
        status = _print_error(
            name, "not enough memory", "ulimit -v shows how much a program may have"
        )
    except Exception as error:  # noqa: BLE001 (whatever it is, nobody is to read a traceback)
        from cgpu_env.logline import locate_error  # noqa: PLC0415 (cgpu-run waits for no import)

        what = f"internal error: {type(error).__name__}: {printable(str(error), 400)}"
        status = _print_error(name, f"{what} at {locate_error(error)}", "please report this line")
    _drop_output()
    sys.exit(status)


def undo_when_terminated() -> None:
    """Turn SIGTERM and SIGHUP into exceptions, so that everything is undone."""
    import signal  # noqa: PLC0415 (1.5 ms, which cgpu-run does not wait for)

    def exit_by_signal(number: int, _frame: object) -> NoReturn:
        sys.exit(_SIGNALLED + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup
            signal.signal(number, exit_by_signal)


def _hear_interrupts() -> None:
    """Make an interrupt an exception again; ``cgpu_entry`` has changed that."""
    import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 (as there)

    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _finish_work(work: Callable[[], int]) -> int:
    """Return the status of ``work`` after writing all that it printed."""
    try:
        status = work()
    except SystemExit as end:  # argparse has already printed the message
        if isinstance(end.code, str):
            raise CgpuError(end.code) from None
        status = end.code or 0
    sys.stdout.flush()
    return status


class _Closed(io.TextIOBase):
    """Replaces a closed standard output; without it, ``print`` would print nothing silently."""

    def write(self, _text: str) -> NoReturn:
        """Raise an error, which informs the user."""
        raise CgpuError("cannot write the output: standard output is closed")


def _prepare_output() -> None:
    r"""Print characters that the locale cannot show as escapes such as \xe4."""
    sys.stdout = sys.stdout or _Closed()
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # a test's stand-in has none
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _format_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        where = "cannot write the output or a file: " if error.errno in _FULL else ""
        return where + reason
    name = error.filename if isinstance(error.filename, (str, bytes)) else str(error.filename)
    return f"{printable(os.fsdecode(name), 400)}: {reason}"


def _print_error(name: str, sentence: str, hint: str, status: int = REFUSED) -> int:
    try:
        print(f"{name}: {sentence}", file=sys.stderr)  # noqa: T201 (for whoever started it)
        if hint:
            print(f"  {hint}", file=sys.stderr)  # noqa: T201 (likewise)
    except OSError:  # there is no reader
        pass
    return status


def _drop_output() -> None:
    """From now on, do not try again to print what could not be printed."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _STDOUT)
        os.close(null)


def _end_by(name: str) -> NoReturn:
    """Die of the signal ``name``, so that a shell stops its loop. If that is not possible, exit."""
    import signal  # noqa: PLC0415 (1.5 ms, which cgpu-run does not wait for)

    _drop_output()
    number = signal.Signals[name]
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(_SIGNALLED + number)  # the first process of a container
