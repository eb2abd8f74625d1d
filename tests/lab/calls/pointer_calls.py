"""Calls of the driver with each of their pointers left out, for programs that tests start."""

from __future__ import annotations

import itertools
from ctypes import byref
from typing import Any

from lab.calls.cuda_calls import cuda, driver, show, used

_REAL = driver()


class Pointer:
    """An argument that can be left out; what a figure points to is shown."""

    def __init__(self, target: Any, *, is_figure: bool = False) -> None:
        self.target = target
        self.is_figure = is_figure


def pointer(target: Any) -> Pointer:
    """To an object of ctypes."""
    return Pointer(target)


def figure(kind: Any) -> Pointer:
    """To a number that the call gives out."""
    return Pointer(kind(), is_figure=True)


def leave_out(name: str, *arguments: Any) -> None:
    """Call ``name`` without one, without two and without all of its pointers.

    Shows for each what was given (+) and left out (-), the status, what it charged, and the
    figures. A call that gives out figures is made with all its pointers too.
    """
    pointers = [argument for argument in arguments if isinstance(argument, Pointer)]
    fewest = 0 if any(each.is_figure for each in pointers) else 1
    if not hasattr(_REAL, name):
        return
    for count in range(fewest, len(pointers) + 1):
        for missing in itertools.combinations(pointers, count):
            _call(name, arguments, missing)


def _call(name: str, arguments: tuple[Any, ...], missing: tuple[Pointer, ...]) -> None:
    before = used()
    status = getattr(cuda, name)(*(_passed(argument, missing) for argument in arguments))
    pointers = [argument for argument in arguments if isinstance(argument, Pointer)]
    given = "".join("-" if each in missing else "+" for each in pointers)
    figures = [each.target.value for each in pointers if each.is_figure and each not in missing] * (
        status == 0
    )
    show(name, given, status, used() - before, *figures)


def _passed(argument: Any, missing: tuple[Pointer, ...]) -> Any:
    if not isinstance(argument, Pointer):
        return argument
    return None if argument in missing else byref(argument.target)


__all__ = ["figure", "leave_out", "pointer"]
