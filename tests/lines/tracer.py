"""Records which lines of the product one process runs; executed at the process's start.

``coverage`` itself takes 100 ms of a process's start, and finds its settings in a variable, which
our programs do not pass on. Only its tracer is loaded here, by its path. Each process writes what
it ran to a file of its own when it ends or becomes another program.
"""

from __future__ import annotations

import _imp
import _thread
import os
import sys
import time
from _frozen_importlib import ModuleSpec  # type: ignore[import-not-found]
from _frozen_importlib_external import ExtensionFileLoader  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _ignore(*_: object) -> None:
    """No contexts, no plugins, no warnings; the interpreter's own lock guards the data."""


class Tracing:
    """The lines of files below ``folders``; ``write`` adds a file to ``target``."""

    def __init__(self, library: str, folders: tuple[str, ...], target: str) -> None:
        spec = ModuleSpec("coverage.tracer", ExtensionFileLoader("coverage.tracer", library))
        spec.origin = library
        module = _imp.create_dynamic(spec)
        _imp.exec_dynamic(module)
        self._tracer = module.CTracer
        self._answer = module.CFileDisposition
        self._folders = folders
        self._target = target
        self._lines: dict[str, set[int]] = {}
        self._known: dict[str, object] = {}
        self._tracers: list[object] = []  # one that goes stops whichever is at work

    def _file(self, name: str, _frame: object) -> object:
        """Whether file ``name`` is measured, in the tracer's own kind of answer."""
        answer = self._answer()
        answer.source_filename = name
        answer.trace = name.startswith(self._folders)
        answer.file_tracer = None
        answer.has_dynamic_filename = False
        return answer

    def start(self) -> None:
        """Trace the calling thread from its next call on."""
        tracer = self._tracer()
        tracer.data = self._lines
        tracer.should_trace = self._file
        tracer.should_trace_cache = self._known
        tracer.trace_arcs = False
        tracer.warn = tracer.lock_data = tracer.unlock_data = _ignore
        tracer.concur_id_func = tracer.should_start_context = None
        self._tracers.append(tracer)
        tracer.start()

    def write(self) -> None:
        """What was run so far. A process that may not write here is not measured."""
        seen = [(name, sorted(lines)) for name, lines in list(self._lines.items()) if lines]
        text = "".join(f"{name}\t{' '.join(map(str, lines))}\n" for name, lines in seen)
        path = f"{self._target}/{os.getpid()}-{time.monotonic_ns()}"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        os.write(file, text.encode())
        os.close(file)


def _before(tracing: Tracing, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which does not return, after what was run is written."""

    def written(*words: Any, **named: Any) -> Any:
        tracing.write()
        return function(*words, **named)

    written.__wrapped__ = function  # type: ignore[attr-defined]
    return written


def _threads(tracing: Tracing) -> None:
    """Trace threads too: whoever imports ``threading`` from now on finds our function."""
    begin = _thread.start_new_thread

    def start(function: Callable[..., object], *words: Any) -> int:
        def traced(*given: Any, **named: Any) -> None:
            tracing.start()
            function(*given, **named)

        return begin(traced, *words)

    _thread.start_new_thread = start


def trace(library: str, folders: tuple[str, ...], target: str) -> None:
    """Trace this process once, unless its imports are counted."""
    if "importtime" in sys._xoptions or hasattr(os._exit, "__wrapped__"):  # noqa: SLF001
        return
    tracing = Tracing(library, folders, target)
    _threads(tracing)
    import atexit  # noqa: PLC0415 - not where imports are counted

    atexit.register(tracing.write)
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, _before(tracing, getattr(os, name)))
    tracing.start()
