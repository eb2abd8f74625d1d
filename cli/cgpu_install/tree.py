"""Values in nested tables, and the check that an edited text has the intended content."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from cgpu_env import CgpuError

_DEEPEST = 100  # engines' own have five


def with_path(path: str, error: CgpuError) -> CgpuError:
    """Return ``error`` with the name of its file, if it has not got that yet."""
    sentence = str(error) if str(error).startswith("/") else f"{path}: {error}"
    return type(error)(sentence, hint=error.hint)


def check_depth(data: dict[str, Any]) -> dict[str, Any]:
    """Return ``data``, unless it is too deep for the recursive functions that use it.

    Raises:
        CgpuError: it is nested too deeply.
    """
    level: list[object] = [data]
    for _ in range(_DEEPEST):
        lists = (list(each.values()) if isinstance(each, dict) else each for each in level)
        level = [inner for each in lists if isinstance(each, list) for inner in each]
        if not level:
            return data
    raise CgpuError(f"nested more than {_DEEPEST} levels deep, which no engine's configuration is")


def get_value(data: object, path: Sequence[str]) -> Any:  # noqa: ANN401 (whatever is there)
    """Return the value at ``path``; None if there is none.

    Raises:
        CgpuError: something on the way is not a table.
    """
    for i, key in enumerate(path):
        if not isinstance(data, dict):
            raise CgpuError(f"{'.'.join(path[:i])}: expected a table")
        if key not in data:
            return None
        data = data[key]
    return data


def with_value(data: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """Return a copy with ``value`` at ``path``; missing tables on the way there are made."""
    made = copy.deepcopy(data)
    node = made
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
    return made


def without_value(data: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return a copy without what is at ``path``."""
    made = copy.deepcopy(data)
    del get_value(made, path[:-1])[path[-1]]
    return made


def find_lone_ancestor(data: dict[str, Any], path: Sequence[str]) -> Sequence[str]:
    """Return the outermost ancestor of ``path`` that contains nothing else."""
    while len(path) > 1 and len(get_value(data, path[:-1])) == 1:
        path = path[:-1]
    return path


def verify_text(text: str, parse: Callable[[str], dict[str, Any]], expected: dict[str, Any]) -> str:
    """Return ``text`` if it parses as ``expected``.

    Raises:
        CgpuError: it parses as something else.
    """
    if parse(text) != expected:
        raise CgpuError("written in a way that cgpu cannot change safely: change it by hand")
    return text
