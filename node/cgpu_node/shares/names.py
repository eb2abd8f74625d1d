"""Names of containers, as their engines gave them.

cgpu does not store names: each request reads them from the engine's files.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING

from cgpu_node.facts.engines import ENGINES, KnownContainer
from cgpu_node.facts.runc_state import bundle_of, read_json, to_table
from cgpu_node.shares.record import CLAIM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cgpu_node.shares.record import Record

_REMEMBERED_SECONDS = 5


def name_of(record: Record) -> str:
    """Return the container's name, or a session's program, or a claim's namespace and name.

    It is empty if the engine gave no name.

    If a container is renamed, the new name appears here a few seconds later.
    """
    if record.kind == CLAIM:
        return "".join(record.command[:1])
    if record.kind == "session":
        return os.path.basename(record.command[0]) if record.command else ""
    return _find_name(
        record.id, record.owner.runtime_dir, int(time.monotonic() / _REMEMBERED_SECONDS)
    )


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """Return the containers' names, by id."""
    return {record.id: name_of(record) for record in records}


@functools.lru_cache(maxsize=1024)
def _find_name(id_: str, runtime_dir: str | None, _: int) -> str:
    bundle = bundle_of(runtime_dir)
    config = to_table(read_json(f"{bundle}/config.json"))
    found = KnownContainer(id_, bundle, config, to_table(config.get("annotations")))
    return next(filter(None, _list_names(found)), "")


def _list_names(container: KnownContainer) -> Iterator[str]:
    """Yield names that an engine may have given the container, those that need no file first."""
    for engine in ENGINES:
        parts = [container.annotations.get(key) for key in engine.name_keys]
        if parts and parts[-1]:
            yield "/".join(str(part) for part in parts if part)
    for engine in ENGINES:
        if engine.find_name:
            yield engine.find_name(container)
    yield str(container.config.get("hostname", ""))
