"""Change one value of a JSON text, and leave every other byte as it is.

The standard library reads the text; the code here only finds where members begin and end. Every
result is read again, and compared with what was wanted, before it is returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

from cgpu_env import CgpuError
from cgpu_install.tree import check_depth, verify_text, with_value, without_value

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_INDENT = "    "


class _Member(NamedTuple):
    """One member of an object, by offsets in the text."""

    key: str
    start: int
    value: int
    end: int


def parse(text: str) -> dict[str, Any]:
    """Return the object in ``text``; an empty one if the text is blank.

    Raises:
        CgpuError: it is no JSON, no object, nested too deeply, or has a name twice.
    """
    if not text.strip():
        return {}
    try:
        data = json.loads(text, object_pairs_hook=_check_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CgpuError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise CgpuError("expected a JSON object")
    return check_depth(data)


def set_value(text: str, path: Sequence[str], value: object) -> str:
    """Return ``text`` with ``value`` at ``path``; missing objects on the way there are made."""
    wanted = with_value(parse(text), path, value)
    if not text.strip():
        return json.dumps(wanted, indent=_INDENT) + "\n"
    return verify_text(_write_value(text, path, value), parse, wanted)


def remove_value(text: str, path: Sequence[str]) -> str:
    """Return ``text`` without what is at ``path``."""
    wanted = without_value(parse(text), path)
    at = _skip_blanks(text, 0)
    for key in path[:-1]:
        at = next(m.value for m in _parse_members(text, at) if m.key == key)
    members = _parse_members(text, at)
    i = next(i for i, m in enumerate(members) if m.key == path[-1])
    if len(members) == 1:
        return verify_text(
            text[: at + 1] + text[_skip_blanks(text, members[0].end) :], parse, wanted
        )
    if i > 0:
        return verify_text(text[: members[i - 1].end] + text[members[i].end :], parse, wanted)
    return verify_text(text[: members[0].start] + text[members[1].start :], parse, wanted)


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CgpuError(f'"{twice}" is there twice: expected each name once')
    return made


def _no_constant(name: str) -> NoReturn:
    raise CgpuError(f"not JSON: {name}")


def _skip_blanks(text: str, at: int) -> int:
    return cast("re.Match[str]", _BLANKS.match(text, at)).end()


def _parse_members(text: str, at: int) -> list[_Member]:
    """Return the members of the object that begins at ``at``. The text is known to be JSON."""
    members = []
    at = _skip_blanks(text, at + 1)
    while text[at] != "}":
        start = at
        key, at = _DECODER.raw_decode(text, at)
        value = _skip_blanks(text, _skip_blanks(text, at) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, start, value, end))
        at = _skip_blanks(text, end)
        at = _skip_blanks(text, at + 1) if text[at] == "," else at
    return members


def _write_value(text: str, path: Sequence[str], value: object) -> str:
    at, margin = _skip_blanks(text, 0), ""
    for depth, key in enumerate(path):
        members = _parse_members(text, at)
        found = next((m for m in members if m.key == key), None)
        if found is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert_member(text, at, members, _Style(text, margin), key, value)
        margin = _read_margin(text, found.start) or margin
        if depth + 1 == len(path):
            written = _Style(text, margin).dump(value, spread="\n" in text[found.value : found.end])
            return text[: found.value] + written + text[found.end :]
        at = found.value
    return text


def _read_margin(text: str, at: int) -> str | None:
    """Return the blanks before ``at`` on its line; None if there is something else."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return None if line.strip() or "\n" not in text[:at] else line


class _Style:
    """The layout of a text, for a value that comes after ``margin``."""

    def __init__(self, text: str, margin: str) -> None:
        first = re.search(r"\n([ \t]+)\S", text)
        self.unit = first.group(1) if first else _INDENT
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.margin = margin

    def dump(self, value: object, *, spread: bool) -> str:
        """Return the value as text, over several lines if ``spread``."""
        if not spread:
            return json.dumps(value)
        return json.dumps(value, indent=self.unit).replace("\n", self.newline + self.margin)


def _insert_member(  # noqa: PLR0913, PLR0917 (a place, a way, and what)
    text: str, at: int, members: list[_Member], style: _Style, key: str, value: object
) -> str:
    if members:
        lead = text[at + 1 : members[0].start]
        spread = "\n" in lead
        style.margin = lead.rpartition("\n")[2] if spread else ""
        lead = f"{style.newline}{style.margin}" if spread else " "
        added = f",{lead}{json.dumps(key)}: {style.dump(value, spread=spread)}"
        return text[: members[-1].end] + added + text[members[-1].end :]
    outer = style.margin
    spread = "\n" in text.strip() or at == _skip_blanks(text, 0)
    style.margin += style.unit
    inner = f"{json.dumps(key)}: {style.dump(value, spread=spread)}"
    if spread:
        inner = f"{style.newline}{style.margin}{inner}{style.newline}{outer}"
    return text[: at + 1] + inner + text[_skip_blanks(text, at + 1) :]
