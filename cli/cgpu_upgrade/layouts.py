"""The versions of files that outlive a release: those that it reads, and those that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import cgpu_native
from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_install import journal
from cgpu_node.settings import rules
from cgpu_node.shares import record

# The files of a container come first.
CONTAINER = ("limits", "ledger", "record")
_WRITES = {
    "limits": cgpu_native.LIMITS_VERSION,
    "ledger": cgpu_native.LEDGER_VERSION,
    "record": record.VERSION,
    "rules": rules.VERSION,
    "install": journal.VERSION,
}


class Layouts(NamedTuple):
    """The file versions of a release, by the names in ``CONTAINER``, ``rules`` and ``install``.

    Attributes:
        release: the release.
        reads: for each file, the versions that the release understands.
        writes: for each file, the version that it writes, unless a setting needs a later one.
    """

    release: str
    reads: Mapping[str, list[int]]
    writes: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the output of ``cgpu upgrade --layouts``."""
        return {"version": 1, **self._asdict()}


def own_layouts() -> Layouts:
    """Return the layouts of this release."""
    reads = {name: [number] for name, number in _WRITES.items()}
    return Layouts(VERSION, {**reads, "rules": list(rules.READ)}, _WRITES)


# Release 0.1.0 cannot report its layouts.
_FIRST_WRITES = {"limits": 2, "ledger": 2, "record": 1, "rules": 1, "install": 1}
FIRST = Layouts("0.1.0", {name: [n] for name, n in _FIRST_WRITES.items()}, _FIRST_WRITES)


def parse_layouts(text: str) -> Layouts:
    """Parse another release's output.

    Raises:
        CgpuError: it is not understood.
    """
    try:
        data = json.loads(text)
        return Layouts(str(data["release"]), dict(data["reads"]), dict(data["writes"]))
    except (ValueError, KeyError, TypeError):
        raise CgpuError("its cgpu upgrade --layouts: expected an object with reads") from None
