"""Which objects the selectors of a list or watch choose: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_FIELDS = {"metadata.name", "metadata.namespace", "spec.nodeName", "spec.schedulerName",
           "spec.driver", "status.phase", "involvedObject.uid"}  # fmt: skip


class SelectorError(ValueError):
    """A selector that cannot be read, or that the API server does not know."""


def chosen(item: Json, query: Mapping[str, str]) -> bool:
    """Whether ``fieldSelector`` and ``labelSelector`` of a query choose an object."""
    labels = item["metadata"].get("labels") or {}
    fields = (_field(item, each) for each in _terms(query.get("fieldSelector", "")))
    return all(fields) and all(
        _label(labels, each) for each in _terms(query.get("labelSelector", ""))
    )


def _terms(selector: str) -> list[str]:
    return [each.strip() for each in re.split(r",(?![^(]*\))", selector) if each.strip()]


def _field(item: Json, term: str) -> bool:
    name, relation, value = _relation(term)
    if name not in _FIELDS or not relation:
        raise SelectorError(f"field label not supported: {name}")
    found: Any = item
    for part in name.split("."):
        found = (found or {}).get(part)
    return ((found or "") == value) == (relation != "!=")


def _label(labels: Mapping[str, str], term: str) -> bool:
    if match := _SET.match(term):
        values = {each.strip() for each in match[3].split(",")}
        return (labels.get(match[1]) in values) == (match[2] == "in")
    name, relation, value = _relation(term)
    if not relation:
        return (name.removeprefix("!") in labels) != name.startswith("!")
    return (labels.get(name) == value) == (relation != "!=")


def _relation(term: str) -> tuple[str, str, str]:
    name, relation, value, *_ = [*re.split(r"(!=|==|=)", term, maxsplit=1), "", ""]
    return name, relation, value
