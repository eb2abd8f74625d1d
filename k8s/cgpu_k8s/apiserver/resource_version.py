"""Distinguishes new events of a watch from those that come twice or late: pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

Json = dict[str, Any]
REMEMBERED = 1000  # deleted objects


def get_metadata(item: Json) -> Json:
    """Return an object's metadata, empty if it has none."""
    about = item.get("metadata")
    return about if isinstance(about, dict) else {}


def version_of(item: Json) -> str:
    """Return an object's ``resourceVersion``; "" if it has none."""
    return str(get_metadata(item).get("resourceVersion") or "")


class VersionTracker:
    """The newest version seen, of the whole list and of each object in it.

    Versions are decimal numbers that rise with every write, in etcd's API server and by contract
    since 1.35. From an API server with other versions, every event counts as new.

    Attributes:
        version: the version from which a watch goes on; "" before the first list.
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
        """Record that every event up to ``version`` has come."""
        numbers = version.isdecimal() and self.version.isdecimal()
        if not numbers or int(version) > int(self.version):
            self.version = version

    def accept_event(self, kind: str, item: Json) -> bool:
        """Return whether an event of ``kind`` is new for ``item``, and record it."""
        uid, version = str(get_metadata(item).get("uid")), version_of(item)
        self.advance_to(version)
        if not version.isdecimal():
            return True
        number, last = int(version), self._versions.get(uid, -1)
        if kind == "DELETED":
            return last >= 0 and number >= last and self._record_deletion(uid, number)
        # An object that a selector did not choose for a while has the same UID again.
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
