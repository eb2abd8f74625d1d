"""Lists the releases of cgpu on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from cgpu_doctor.finding import BY_ROOT, Finding, Ground
from cgpu_env.version import VERSION
from cgpu_node import installation
from cgpu_upgrade import living, switch


def check_releases(ground: Ground) -> Iterator[Finding]:
    """Yield the release in use, the one to go back to, and what upgrades have left."""
    own = installation.own_environment()
    if own is None:
        yield Finding("ok", f"release {VERSION}", VERSION)
        return
    place = installation.find_installation(own)
    release = installation.release_of(place.current_environment)
    yield Finding("ok", f"release {release} in {place.current_environment}", release)
    if place.previous_environment is not None:
        kept = place.previous_environment
        release = installation.release_of(kept)
        what = f"cgpu upgrade --back goes back to release {release}, kept in {kept}"
        yield Finding("ok", what, kept)
    guests = [] if ground.is_closed else living.list_running(ground.state_dir)
    for old in switch.list_older(place):
        if ground.is_closed:
            what = f"{old.path} (release {old.release}): only root can see whether it is in use"
            yield Finding("note", what, old.path, BY_ROOT)
        elif living.leads_into(guests, old.path):
            what = f"{old.path} (release {old.release}) is kept for containers that run"
            yield Finding("note", what, old.path)
        else:
            what = f"{old.path} (release {old.release}) is not in use"
            yield Finding("note", what, old.path, f"rm -r {old.path}, or the next cgpu upgrade")
