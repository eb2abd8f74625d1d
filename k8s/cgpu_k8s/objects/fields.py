"""Reads the members of JSON objects as Kubernetes writes them: absent, null and empty are one.

The API server only serves well-formed objects; others who send them may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = Mapping[str, Any]

Kind = TypeVar("Kind", dict[str, Any], list[Any], str, bool)
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


class ObjectError(CgpuError):
    """An object is not what Kubernetes' API describes; one sentence names the member."""


def get_member(of: Json, name: str, kind: type[Kind]) -> Kind:
    """The member ``name`` of an object; what ``kind`` has as empty value if it is absent or null.

    Raises:
        ObjectError: it is of another kind.
    """
    value = of.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ObjectError(f"{name}: expected {_NAMES[kind]}, got {type(value).__name__}")
    return value


def get_objects(of: Json, name: str) -> list[dict[str, Any]]:
    """The members of a list of objects.

    Raises:
        ObjectError: it is no such list.
    """
    found = get_member(of, name, list)
    for each in found:
        if not isinstance(each, dict):
            raise ObjectError(f"{name}: expected objects, got {type(each).__name__}")
    return found


def get_strings(of: Json, name: str) -> dict[str, str]:
    """The members of an object of strings, such as labels.

    Raises:
        ObjectError: it is no such object.
    """
    found = get_member(of, name, dict)
    for key, value in found.items():
        if not isinstance(value, str):
            raise ObjectError(f"{name}.{key}: expected a string, got {type(value).__name__}")
    return found
