"""``cgpu plan``: what cgpu would do to a configuration on this node; changes nothing."""

from __future__ import annotations

import os

from cgpu_hook import document, rules
from cgpu_hook.admission import check_weight
from cgpu_hook.container import Setting, draft, rootfs_path
from cgpu_hook.plan import Plan, container_environment
from cgpu_hook.rootfs import Rootfs

_NAME = "CONTAINER"


def preview(config_path: str, state_dir: str | None = None, driver_dir: str | None = None) -> Plan:
    """The plan for the container of ``config_path``; empty where cgpu is off for it.

    The container's id is not known yet: paths show ``CONTAINER`` in its place. Whether there is
    room for it beside those that run is decided when it starts.

    Raises:
        CgpuError: the container would be refused; one sentence says why.
    """
    path = os.path.abspath(config_path)
    config = document.read(path)
    bundle = os.path.dirname(path)
    setting = Setting(state_dir, driver_dir, dry=True)
    planned = draft(
        config, _NAME, lambda: Rootfs(rootfs_path(config, bundle), bundle=bundle), setting
    )
    if planned is None:
        return Plan()
    node = planned.node
    changes, defaults = rules.read(planned.places.state_dir), rules.configured(node, node.gpus)
    uuids = [share.uuid for share in planned.plan.gpus]
    now = {uuid: rules.of(uuid, changes, defaults, inhabited=False) for uuid in uuids}
    check_weight(planned.plan.request, now, container_environment(config))
    return planned.plan
