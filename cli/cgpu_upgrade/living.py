"""The containers that continue through an upgrade, and whether a release reads their files."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import cgpu_native
from cgpu_env import CgpuError
from cgpu_node.facts.runc_state import bundle_of
from cgpu_node.settings import rules
from cgpu_node.shares.registry import Registry
from cgpu_upgrade.layouts import CONTAINER, own_layouts

if TYPE_CHECKING:
    from cgpu_node.shares.record import Record
    from cgpu_upgrade.layouts import Layouts

_SHOWN = 5


class RunningContainer(NamedTuple):
    """A living container or session.

    Attributes:
        id: its id.
        release: the release that made it.
        versions: the versions of its files, by the names of ``layouts.CONTAINER``; None: no such
            file.
        bundle: the directory where its engine keeps its configuration; empty: none.
    """

    id: str
    release: str
    versions: dict[str, int | None]
    bundle: str


def list_running(state_dir: str) -> list[RunningContainer]:
    """Return the containers and sessions that live now."""
    return [_read_container(record) for record in Registry(state_dir).list_records()]


def count_by_release(living: list[RunningContainer]) -> dict[str, int]:
    """Count the containers by release."""
    return dict(sorted(Counter(guest.release for guest in living).items()))


def check_containers(living: list[RunningContainer], layouts: Layouts) -> None:
    """Refuse a release that does not understand the files of living containers.

    Raises:
        CgpuError: one sentence with their names.
    """
    lost = [guest for guest in living if not _is_read(guest, layouts)]
    if not lost:
        return
    names = ", ".join(f"{guest.id[:12]} ({guest.release})" for guest in lost[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    raise CgpuError(
        f"cgpu {layouts.release} cannot read the files of running containers:"
        f" {names}{more}; nothing was changed",
        hint="end them first, or take a release in between that reads both",
    )


def check_rules(state_dir: str, layouts: Layouts) -> None:
    """Refuse a release that cannot read what ``cgpu set`` has changed, such as default_memsize.

    Raises:
        CgpuError: one sentence with the version.
    """
    path = f"{state_dir}/{rules.FILE}"
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if found not in layouts.reads.get("rules", [found]):
        raise CgpuError(
            f"cgpu {layouts.release} cannot read {path}, which is of version {found};"
            " nothing was changed",
            hint=f"note what cgpu get shows, remove {path}, and set it again afterwards",
        )


def leads_into(living: list[RunningContainer], environment: str) -> bool:
    """Whether a living container will start a hook from ``environment`` when it ends."""
    return any(_mentions_path(guest.bundle, f"{environment}/") for guest in living if guest.bundle)


def _read_container(record: Record) -> RunningContainer:
    pages = {name: cgpu_native.read_head(f"{record.directory}/{name}") for name in CONTAINER[:2]}
    versions = {name: page and page.version for name, page in pages.items()}
    limits = pages["limits"]
    release = limits.release if limits else "unknown"
    bundle = bundle_of(record.owner.runtime_dir)
    return RunningContainer(record.id, release, {**versions, "record": record.version}, bundle)


def _is_read(guest: RunningContainer, layouts: Layouts) -> bool:
    """Whether a release can read the files of a container.

    A missing file means that the container is ending. A container can write any version into its
    ledger. So a version that the release in use cannot read either is no reason to refuse.
    """
    there = {name: version for name, version in guest.versions.items() if version is not None}
    if there.get("ledger") not in own_layouts().reads["ledger"]:
        there.pop("ledger", None)
    return all(version in layouts.reads[name] for name, version in there.items())


def _mentions_path(bundle: str, path: str) -> bool:
    try:
        with open(f"{bundle}/config.json", encoding="utf-8", errors="replace") as file:
            return path in file.read()
    except OSError:
        return True  # it cannot be read: keep what it may need
