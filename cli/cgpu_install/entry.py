"""The entry in an engine's configuration that names our program: added, repaired, removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_install.machine import Machine
from cgpu_install.tree import find_lone_ancestor, get_value

NAME = "cgpu"  # of our runtime, in engines
_PLAIN = ("runc", "io.containerd.runc.v2")  # docker's default has either name


class Format(Protocol):
    """``json_text`` or ``toml_text``."""

    def parse(self, text: str, /) -> dict[str, Any]:
        """Return the values in the text."""

    def set_value(self, text: str, path: Sequence[str], value: object, /) -> str:
        """Return the text with a value set."""

    def remove_value(self, text: str, path: Sequence[str], /) -> str:
        """Return the text with a value removed."""


class Entry(NamedTuple):
    """The part of a configuration that names our program.

    Attributes:
        format: how the file is written.
        place: the path of the entry in the configuration.
        program: the path of the program's name in the entry; empty: the entry is a list with the
            name.
        make: makes a new entry, from the configuration and the program's path.
        replaces: whether an entry that names others' programs is replaced, not refused.
        whole: makes the text of a file that is cgpu's alone; None: the file is another's.
    """

    format: Format
    place: tuple[str, ...]
    program: tuple[str, ...]
    make: Callable[[dict[str, Any], str], object]
    replaces: bool = False
    whole: Callable[[str], str] | None = None


class Default(NamedTuple):
    """The setting of an engine's configuration that names its default runtime.

    Attributes:
        format: how the file is written.
        place: returns the path of the setting in a configuration.
        check: refuses if another setting of the machine would overrule it.
    """

    format: Format
    place: Callable[[dict[str, Any]], tuple[str, ...]]
    check: Callable[[Machine], None]

    def read_runtime(self, text: str) -> object:
        """Return the runtime that ``text`` names, or None."""
        data = self.format.parse(text)
        return get_value(data, self.place(data)) if data else None

    def set_runtime(self, text: str) -> str:
        """Return ``text`` with our runtime as the default.

        Raises:
            CgpuError: the default is a runtime that does more than runc.
        """
        place = self.place(data := self.format.parse(text))
        check_plain(place, there := get_value(data, place))
        return text if there == NAME else self.format.set_value(text, place, NAME)

    def restore(self, text: str, before: object) -> str:
        """Return ``text`` with the default ``before``, if it names our runtime, which is gone."""
        place = self.place(data := self.format.parse(text))
        if (
            get_value(data, place) != NAME
            or get_value(data, (*place[:-1], "runtimes", NAME)) is not None
        ):
            return text
        if isinstance(before, str) and before != NAME:
            return self.format.set_value(text, place, before)
        return self.format.remove_value(text, find_lone_ancestor(data, place))


def check_plain(place: Sequence[str], there: object) -> None:
    """Refuse a default runtime that does more than runc, because containers would lose that.

    Raises:
        CgpuError: it does more; for NVIDIA's, the sentence says what to do instead.
    """
    if there not in (None, *_PLAIN, NAME):
        is_nvidia = "nvidia" in str(there)
        hint = "cgpu install nvidia: containers of NVIDIA's runtime then go through cgpu's too"
        sentence = f"{'.'.join(place)} = {printable(str(there))}: expected runc, or none"
        raise CgpuError(sentence, hint=hint if is_nvidia else "")


def add_entry(entry: Entry, text: str, program: str) -> str:
    """Return ``text`` with the entry in it; the same text if the entry is right already.

    Raises:
        CgpuError: one sentence about what is in its place.
    """
    data = entry.format.parse(text)
    if not data and entry.whole is not None:
        return entry.whole(program)
    there = get_value(data, entry.place)
    if there is None:
        return entry.format.set_value(text, entry.place, entry.make(data, program))
    value: object = get_value(there, entry.program)
    is_list = not entry.program
    named = value[0] if is_list and isinstance(value, list) and len(value) == 1 else value
    if not entry.replaces and not _is_ours(named, program):
        where = ".".join((*entry.place, *entry.program))
        what = "is not there" if value is None else f"= {printable(str(value))}"
        raise CgpuError(f"{where} {what}: expected no such entry, or one of cgpu's")
    if named == program:
        return text
    return entry.format.set_value(
        text, (*entry.place, *entry.program), [program] if is_list else program
    )


def remove_entry(entry: Entry, text: str, program: str) -> str | None:
    """Return ``text`` without the entry; None if nothing else is in the file.

    Raises:
        CgpuError: the text is not understood.
    """
    data = entry.format.parse(text)
    there = get_value(data, entry.place)
    named = None if there is None else get_value(there, entry.program)
    others = [] if not isinstance(named, list) else [n for n in named if not _is_ours(n, program)]
    ours = named[0] if isinstance(named, list) and len(named) > len(others) else named
    if not _is_ours(ours, program):
        return text
    if others:
        return entry.format.set_value(text, (*entry.place, *entry.program), others)
    if entry.whole is not None:
        return None
    return entry.format.remove_value(text, find_lone_ancestor(data, entry.place))


def _is_ours(named: object, program: str) -> bool:
    return isinstance(named, str) and os.path.basename(named) == os.path.basename(program)
