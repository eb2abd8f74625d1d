"""Tells new events of a watch from repeated and late ones (pure)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

Json = dict[str, Any]
REMEMBERED = 1000  # how many deleted objects are remembered


def get_metadata(item: Json) -> Json:
    """Return an object's metadata; {} if it has none."""
    about = item.get("metadata")
    return about if isinstance(about, dict) else {}


def version_of(item: Json) -> str:
    """Return an object's ``resourceVersion``; "" if it has none."""
    return str(get_metadata(item).get("resourceVersion") or "")


class VersionTracker:
    """The newest resourceVersions seen: of the whole list, and of each object in it.

    They are decimal numbers that grow with every write: with etcd in every release, and by contract
    from Kubernetes 1.35 on. If an API server has other versions, every event counts as new.

    Attributes:
        version: the version from which a watch continues; "" before the first list.
    """

    def __init__(self) -> None:
        self.version = ""
        self._versions: dict[str, int] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def add_listed(self, item: Json) -> None:
        """Record the version of an object in the list."""
        version = version_of(item)
        if version.isdecimal():
            self._versions[str(get_metadata(item).get("uid"))] = int(version)

    def advance_to(self, version: str) -> None:
        """Record that every event up to ``version`` has been received."""
        numbers = version.isdecimal() and self.version.isdecimal()
        if not numbers or int(version) > int(self.version):
            self.version = version

    def accept_event(self, kind: str, item: Json) -> bool:
        """Record an event of ``kind`` for the object ``item``; return whether it is new."""
        uid, version = str(get_metadata(item).get("uid")), version_of(item)
        self.advance_to(version)
        if not version.isdecimal():
            return True
        number, last = int(version), self._versions.get(uid, -1)
        if kind == "DELETED":
            return last >= 0 and number >= last and self._record_deletion(uid, number)
        # An object that a selector stops matching counts as DELETED. It can match again later.
        if number <= max(last, self._deleted.get(uid, -1)):
            return False
        self._versions[uid] = number
        return True

    def _record_deletion(self, uid: str, version: int) -> bool:
        del self._versions[uid]
        self._deleted[uid] = version
        self._deleted.move_to_end(uid)
        if len(self._deleted) > REMEMBERED:
            self._deleted.popitem(last=False)
        return True
