"""Reads members of Kubernetes' JSON objects. An absent or null member counts as an empty one.

The API server serves only well-formed objects. Other senders may not, so types are checked.
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
    """An object does not match the Kubernetes API. The message, one sentence, names the member."""


def get_member(item: Json, name: str, kind: type[Kind]) -> Kind:
    """Return the member ``name`` of an object, or an empty ``kind`` if it is absent or null.

    Raises:
        ObjectError: the member has another type.
    """
    value = item.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ObjectError(f"{name}: expected {_NAMES[kind]}, got {type(value).__name__}")
    return value


def get_objects(item: Json, name: str) -> list[dict[str, Any]]:
    """Return the member ``name``, a list of objects; empty if it is absent or null.

    Raises:
        ObjectError: the member is not a list of objects.
    """
    found = get_member(item, name, list)
    for each in found:
        if not isinstance(each, dict):
            raise ObjectError(f"{name}: expected objects, got {type(each).__name__}")
    return found


def get_strings(item: Json, name: str) -> dict[str, str]:
    """Return the member ``name``, an object of strings such as labels; empty if absent or null.

    Raises:
        ObjectError: the member is not an object of strings.
    """
    found = get_member(item, name, dict)
    for key, value in found.items():
        if not isinstance(value, str):
            raise ObjectError(f"{name}.{key}: expected a string, got {type(value).__name__}")
    return found
