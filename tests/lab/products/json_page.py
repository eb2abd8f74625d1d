"""What docs/json.md says about the answers of ``--json``, and whether real answers agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[3] / "docs" / "json.md"
EVERY = "Every answer"
_ROW = re.compile(r"^\| `([^`]+)` \| ([a-z ]+) \| .+ \|$", re.MULTILINE)
_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
}


def described() -> dict[str, dict[str, set[str]]]:
    """Section -> path -> kinds of its value; each with those of every answer."""
    titles = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    read = {title.splitlines()[0].strip("`"): dict(_ROW.findall(title)) for title in titles}
    kinds = {
        title: {path: set(text.split(" or ")) for path, text in rows.items()}
        for title, rows in read.items()
    }
    return {title: {**kinds[EVERY], **rows} for title, rows in kinds.items() if title != EVERY}


def check(title: str, *answers: dict[str, Any]) -> None:
    """Fail unless these answers together have all keys of the section, and no others."""
    known = described()[title]
    found: dict[str, set[str]] = {}
    for answer in answers:
        for path, kind in _walk(answer, known):
            found.setdefault(path, set()).add(kind)
    assert found.keys() == known.keys(), f"{title}: {found.keys() ^ known.keys()}"
    odd = {path: kinds for path, kinds in found.items() if not _fit(kinds, known[path])}
    assert odd == {}, title


def _fit(kinds: set[str], allowed: set[str]) -> bool:
    return kinds <= (allowed | {"integer"} if "number" in allowed else allowed)


def _walk(value: Any, known: dict[str, set[str]], path: str = "") -> Iterator[tuple[str, str]]:
    """Path and kind of ``value`` and of all in it."""
    if isinstance(value, list) and _has(known, f"{path}[]"):
        for each in value:
            yield from _walk(each, known, f"{path}[]")
    elif isinstance(value, list):
        yield path, "strings" if all(isinstance(each, str) for each in value) else "array"
    elif isinstance(value, dict) and _has(known, f"{path}{{}}"):
        for each in value.values():
            yield from _walk(each, known, f"{path}{{}}")
    else:
        if path:
            yield path, _KINDS[type(value)]
        if isinstance(value, dict):
            for key, each in value.items():
                yield from _walk(each, known, f"{path}.{key}" if path else key)


def _has(known: dict[str, set[str]], beginning: str) -> bool:
    return any(path.startswith(beginning) for path in known)
