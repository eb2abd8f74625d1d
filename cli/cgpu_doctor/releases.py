"""Lists the releases of cgpu on this machine beside the one in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_doctor.finding import BY_ROOT, Finding
from cgpu_env.version import VERSION
from cgpu_node import installation
from cgpu_upgrade import living, switch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_doctor.finding import Ground


def environments(ground: Ground) -> Iterator[Finding]:
    """The one in use, the way back, and what upgrades have left."""
    own = installation.own_environment()
    if own is None:
        yield Finding("ok", f"release {VERSION}", VERSION)
        return
    place = installation.containing(own)
    release = installation.release_of(place.current)
    yield Finding("ok", f"release {release} in {place.current}", release)
    if place.back is not None:
        release = installation.release_of(place.back)
        what = f"cgpu upgrade --back goes back to release {release}, kept in {place.back}"
        yield Finding("ok", what, place.back)
    guests = [] if ground.is_closed else living.guests(ground.state_dir)
    for old in switch.older(place):
        if ground.is_closed:
            what = f"{old.path} (release {old.release}): only root can see whether it is in use"
            yield Finding("note", what, old.path, BY_ROOT)
        elif living.leads_into(guests, old.path):
            what = f"{old.path} (release {old.release}) is kept for containers that run"
            yield Finding("note", what, old.path)
        else:
            what = f"{old.path} (release {old.release}) is not in use"
            yield Finding("note", what, old.path, f"rm -r {old.path}, or the next cgpu upgrade")
