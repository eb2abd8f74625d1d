"""``cgpu plan``: the changes that cgpu would make to a configuration on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_env.request import without_size
from cgpu_hook import document
from cgpu_hook.modifiers import draft_container, edit_config
from cgpu_hook.plan import Plan, Setting, rootfs_path, variables_of
from cgpu_node.client import send_request
from cgpu_node.image.rootfs import Rootfs
from cgpu_node.paths import ROOT_STATE, check_parent, node_state, state_path
from cgpu_node.settings import rules
from cgpu_node.settings.config import make_defaults
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.admission import check_weight

if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Draft

_NAME = "CONTAINER"
_UNKNOWN = (
    "root's cgpud does not answer, so this plan follows the configuration alone: it leaves out what"
    " cgpu set has changed and does not check the weight; as root, cgpu plan does both"
)


def preview_plan(
    config_path: str, state_dir: str | None = None, driver_dir: str | None = None
) -> Plan:
    """Return the plan for the container of ``config_path``; empty if cgpu is off for it.

    The container's id is not known yet: paths have ``CONTAINER`` in its place. Whether it fits
    beside the running containers is decided when it starts. Without ``state_dir``, the plan is for
    a container that root's engine would start, whichever user calls.

    Raises:
        CgpuError: the container would be refused; one sentence says why.
    """
    check_parent(state_path(state_dir))
    path = os.path.abspath(config_path)
    config = document.read(path)
    bundle = os.path.dirname(path)
    root = node_state(state_dir)
    node_status = root and _ask_status(root)
    size = node_status["node"]["default_memsize"] if node_status else None
    setting = Setting(state_dir or ROOT_STATE, driver_dir, dry=True, default_memsize=size)
    draft = draft_container(
        config, _NAME, lambda: Rootfs(rootfs_path(config, bundle), bundle=bundle), setting
    )
    notes = (_UNKNOWN,) if root and not node_status else ()
    if draft.plan.request is None:
        edit_config(draft)  # raises what would refuse a pod's container that has whole GPUs
        warning = without_size(variables_of(config))
        return Plan(notes=(warning, *notes) if warning else notes)
    if not notes:
        now = {**_read_rules(draft), **_parse_rules(node_status["gpus"] if node_status else [])}
        check_weight(draft.plan.request, now)
    return draft.plan._replace(notes=(*draft.plan.notes, *notes))


def _ask_status(state_dir: str) -> dict[str, Any] | None:
    """Ask the server for its status, because the user may not read the node's files."""
    try:
        return send_request(state_dir, {"request": "status"})
    except CgpuError:
        return None


def _parse_rules(gpus: list[dict[str, Any]]) -> dict[str, Rules]:
    return {gpu["uuid"]: Rules(**{name: gpu[name] for name in Rules._fields}) for gpu in gpus}


def _read_rules(draft: Draft) -> dict[str, Rules]:
    """Return the rules, from the state directory, of GPUs that no container is on."""
    node = draft.node
    changes = rules.read_changes(draft.host_files.state_dir)
    defaults = make_defaults(node.config, node.gpus)
    uuids = [share.uuid for share in draft.plan.gpus]
    return {uuid: rules.resolve(uuid, changes, defaults, inhabited=False) for uuid in uuids}
