"""How a patch changes an object: a merge patch (RFC 7386), and Kubernetes' strategic one: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
# A list under this name is merged by the entries' value of this key; any other is replaced.
KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containerStatuses": "name",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "taints": "key",
    "volumes": "name",
}


def merged(old: Json, patch: Mapping[str, Any], *, strategic: bool) -> Json:
    """``old`` with what ``patch`` names; None removes."""
    new = dict(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            before = new.get(key)
            start = before if isinstance(before, dict) else {}
            new[key] = merged(start, value, strategic=strategic)
        elif strategic and key in KEYS and isinstance(value, list):
            new[key] = _merged_list(new.get(key) or [], value, KEYS[key])
        else:
            new[key] = value
    return new


def _merged_list(old: list[Json], patch: list[Json], by: str) -> list[Json]:
    entries = {each[by]: each for each in old}
    for each in patch:
        name = each[by]
        if each.get("$patch") == "delete":
            entries.pop(name, None)
        else:
            entries[name] = merged(entries.get(name, {}), each, strategic=True)
    return list(entries.values())
