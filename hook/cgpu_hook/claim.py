"""The hook of a claim: gives a container that was created the libraries and limits of its claim.

The claim's CDI file starts the hook, at createRuntime, and gives device nodes and variables. The
DRA driver admitted the claim's share before, and gives it back after the claim's last container. So
all containers of a claim have one cap.
"""

from __future__ import annotations

import sys

from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import Request
from cgpu_hook import document
from cgpu_hook.container import announce_container, load_host
from cgpu_hook.created import make_mounts, open_rootfs, parse_state, refuse_withheld
from cgpu_hook.modifiers import GIVING
from cgpu_hook.plan import SHARE_FILES, Draft, rootfs_path
from cgpu_node.paths import state_path
from cgpu_node.settings.config import load_config
from cgpu_node.shares import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.created import CreatedContainer
    from cgpu_hook.plan import Setting

_STAGE = "claim"


def join_claim(uid: str, setting: Setting) -> None:
    """Give the container whose state is on stdin what the claim with this UID has.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    container = parse_state(sys.stdin.buffer.read(), _STAGE)
    config = document.read(f"{container.bundle}/config.json")
    hooks = _read_hooks(config)
    named = {uuid for each in hooks for uuid in each["--gpus"].split(",")}
    request = _read_request(uid, named, setting)
    try:
        draft = _draft_container(uid, container, config, request, setting, refresh=False)
    except GpuLostError:  # by the known facts, which may be old
        draft = _draft_container(uid, container, config, request, setting, refresh=True)
    refuse_withheld(draft)
    if len(hooks) > 1 and draft.open_rootfs().get_kind(SHARE_FILES[0]) == "file":
        return  # only our first run can have put it there, as the modifiers have checked
    make_mounts(draft, container.pid, rootfs_path(config, container.bundle))
    _leave_names(uid, container.pid, config, setting)
    announce_container(draft)


def _read_hooks(config: dict[str, Any]) -> list[dict[str, str]]:
    """Return the options of each of our hooks in the container.

    There is one hook for each request that the container has, and a kubelet may name one twice.

    Raises:
        CgpuError: the container has several claims, and can have only one ledger.
    """
    hooks = (config.get("hooks") or {}).get("createRuntime") or []
    ours = [each["args"][2:] for each in hooks if (each.get("args") or [])[1:2] == [_STAGE]]
    options = [dict(zip(each[::2], each[1::2], strict=True)) for each in ours]
    if len({each["--claim"] for each in options}) > 1:
        raise CgpuError(
            "the container has several claims of cgpu's: expected one, which may have several"
            " requests"
        )
    return options


def _read_request(uid: str, named: set[str], setting: Setting) -> Request:
    """Return what is held for a claim on the GPUs with the UUIDs ``named``."""
    found = record.read(f"{state_path(setting.state_dir)}/containers/{uid}")
    if "/" in uid or found is None or found.kind != record.CLAIM or found.id != uid:
        raise CgpuError(
            f"claim {printable(uid)}: nothing is held for it on this node: delete the pod, so that"
            " the driver prepares its claim again"
        )
    gpus = tuple(gpu for gpu in found.gpus if gpu.uuid in named)
    if not gpus or len(gpus) < len(named):
        raise CgpuError(
            f"claim {printable(uid)}: the container is to have {printable(', '.join(named))}, and"
            f" {', '.join(gpu.uuid for gpu in found.gpus)} is held: delete the pod, so that the"
            " driver prepares its claim again"
        )
    return Request(gpus, found.weight, found.high_priority)


def _leave_names(uid: str, pid: int, config: dict[str, Any], setting: Setting) -> None:
    """Write beside the share whose container this is, for people; errors are ignored."""
    from cgpu_hook.pod import pod_of
    from cgpu_node.shares.claimants import add_container

    try:
        pod = pod_of(config)
        if pod is not None:
            directory = f"{state_path(setting.state_dir)}/containers/{uid}"
            add_container(directory, pid, pod.identity)
    except (CgpuError, OSError):
        return


def _draft_container(  # noqa: PLR0913 (what a draft is made from)
    uid: str,
    container: CreatedContainer,
    config: dict[str, Any],
    request: Request,
    setting: Setting,
    *,
    refresh: bool,
) -> Draft:
    path = rootfs_path(config, container.bundle)
    draft = Draft(
        config,
        uid,
        lambda: open_rootfs(container.pid, path),
        setting,
        load_config(),
        refresh=refresh,
    )
    draft.config = load_host(draft)
    by_uuid = {gpu.uuid: gpu for gpu in draft.node.gpus}
    for share in request.gpus:
        gpu = by_uuid.get(share.uuid)
        if gpu is None or gpu.lost:
            why = gpu.lost if gpu else "the driver does not list it"
            raise GpuLostError(f"GPU {share.index} ({share.uuid}) does not answer: {why}")
    draft.request = request
    for modifier in GIVING:
        modifier(draft)
    return draft
