"""Change one value of a TOML text, and keep its comments, its order and its layout.

A new table is written at the end, which moves nothing. What exists is changed by tomlkit. Every
result is read again, and compared with what was wanted.
"""

from __future__ import annotations

import sys
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from cgpu_env import CgpuError
from cgpu_install.tree import check_depth, get_value, verify_text, with_value, without_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from collections.abc import Callable, Sequence

_UNABLE = (TOMLKitError, AttributeError, KeyError, TypeError, RecursionError)


def parse(text: str) -> dict[str, Any]:
    """Return the tables of ``text``.

    Raises:
        CgpuError: it is no TOML, or nested too deeply.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CgpuError(f"not TOML: {error}") from None
    return check_depth(data)


def set_value(text: str, path: Sequence[str], value: object) -> str:
    """Return ``text`` with ``value`` at ``path``; missing tables on the way there are made."""
    data = parse(text)
    wanted = with_value(data, path, value)
    if len(path) > 1 and get_value(data, path[: None if isinstance(value, dict) else -1]) is None:
        try:
            appended = verify_text(_append_table(text, path, value), parse, wanted)
            _parse_document(appended)  # else it could not be removed again
        except CgpuError:
            pass  # an inline table, which cannot be added to at the end
        else:
            return appended
    return verify_text(_through_tomlkit(text, path, _make_setter(path[-1], value)), parse, wanted)


def remove_value(text: str, path: Sequence[str]) -> str:
    """Return ``text`` without what is at ``path``."""

    def delete_key(table: Any) -> None:  # noqa: ANN401
        del table[path[-1]]

    return verify_text(
        _through_tomlkit(text, path, delete_key), parse, without_value(parse(text), path)
    )


def _append_table(text: str, path: Sequence[str], value: object) -> str:
    document = tomlkit.document()
    node: Any = document
    *tables, last = path
    for i, key in enumerate(tables):
        is_super = isinstance(value, dict) or i + 1 < len(tables)
        node[key] = tomlkit.table(is_super_table=is_super)
        node = node[key]
    node[last] = value
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = newline * ((not text.endswith("\n")) + 1) if text else ""
    return text + gap + tomlkit.dumps(document).replace("\n", newline)


def _make_setter(key: str, value: object) -> Callable[[Any], None]:
    def set_key(table: Any) -> None:  # noqa: ANN401
        table[key] = value

    return set_key


def _through_tomlkit(text: str, path: Sequence[str], change: Callable[[Any], None]) -> str:
    document = _parse_document(text)
    try:
        node: Any = document
        for key in path[:-1]:
            if key not in node:
                node[key] = tomlkit.inline_table()
            node = node[key]
        change(node)
        return tomlkit.dumps(document)
    except _UNABLE as error:
        raise _layout_error(error) from None


def _parse_document(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except _UNABLE as error:
        raise _layout_error(error) from None


def _layout_error(error: Exception) -> CgpuError:
    return CgpuError(f"written in a way that cgpu cannot change: {error}")
