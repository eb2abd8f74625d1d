"""One container at its creation: from its configuration to an admitted share and a changed one."""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError
from cgpu_env.record import NamedTuple
from cgpu_env.request import MEANT, parse_environment, parse_variables, without_size
from cgpu_hook.plan import Plan, plan_container, plan_share
from cgpu_node.paths import ROOT_STATE, open_state, state_path
from cgpu_node.settings.config import load_config
from cgpu_node.settings.rules import default_of_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cgpu_env.request import Request
    from cgpu_hook.plan import HostFiles
    from cgpu_hook.pod import ContainerPod
    from cgpu_node.facts.node import Node
    from cgpu_node.image.rootfs import RootfsView
    from cgpu_node.settings.config import Config
    from cgpu_node.settings.kubernetes import Kubernetes
    from cgpu_node.shares.record import PodContainer


class Setting(NamedTuple):
    """The paths that the caller gives.

    Attributes:
        state_dir: None: the default.
        driver_dir: None: as configured, else searched.
        dry: whether nothing is written, not even facts that had to be asked of the driver.
        default_memsize: used if the state directory's files cannot be read; None: read them.
    """

    state_dir: str | None = None
    driver_dir: str | None = None
    dry: bool = False
    default_memsize: int | str | None = None


class Draft(NamedTuple):
    """A container for which cgpu is on: its share and its plan, and what they were made from."""

    config: dict[str, Any]
    request: Request
    plan: Plan
    node: Node
    host_files: HostFiles
    pod: PodContainer | None = None


class Unshared(NamedTuple):
    """A container that has no share, and whose configuration is changed nevertheless."""

    config: dict[str, Any]


def draft_container(
    config: dict[str, Any], name: str, rootfs: Callable[[], RootfsView], setting: Setting
) -> Draft | Unshared | None:
    """Plan the container ``name``; None if nothing is to be done.

    Nothing is changed. If cgpu is off, neither state directory nor driver is needed.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    settings, state = load_config(), state_path(setting.state_dir)
    decides, pod = settings.kubernetes, None
    if decides is not None:
        from cgpu_hook.pod import pod_of

        pod = pod_of(config)
        if pod is not None and pod.namespace not in decides.pass_through:
            return _draft_pod_container(pod, config, name, rootfs, setting, settings, decides)

    def read_default() -> int | str:
        if setting.default_memsize is not None:
            return setting.default_memsize
        return default_of_new(state, settings.default_memsize)

    variables = variables_of(config)
    asked = parse_variables(variables, read_default, allow_off=settings.allow_off)
    if asked is None:
        if not setting.dry:
            _warn_administrator(without_size(variables), name)
        return None
    from cgpu_node.facts.node import refresh_if_lost

    def make_draft(*, refresh: bool) -> Draft | None:
        node, here, own = _prepare_node(config, name, setting, settings, refresh=refresh)
        found = plan_container(own, asked, node, rootfs(), here)
        request = found.request
        return Draft(own, request, found, node, here, pod and pod.identity) if request else None

    return refresh_if_lost(make_draft)


def _prepare_node(
    config: dict[str, Any], name: str, setting: Setting, settings: Config, *, refresh: bool
) -> tuple[Node, HostFiles, dict[str, Any]]:
    """The node, its files for the container ``name``, and the configuration as nobody edited it."""
    from cgpu_hook.edit import without_earlier_edit
    from cgpu_hook.layout import host_files
    from cgpu_node.facts.node import load_node

    state_dir = state_path(setting.state_dir) if setting.dry else open_state(setting.state_dir)
    node = load_node(
        state_dir, setting.driver_dir, config=settings, refresh=refresh, keep=not setting.dry
    )
    here = host_files(name, state_dir, node)
    if state_dir == ROOT_STATE:
        from cgpu_node.sealed import seal_proxy

        proxies = {
            soname: seal_proxy(proxy, state_dir, make=not setting.dry)
            for soname, proxy in here.proxies.items()
        }
        here = here._replace(proxies=proxies)
    return node, here, without_earlier_edit(config, node, here)


def _draft_pod_container(  # noqa: PLR0913, PLR0917 (what a draft is made from)
    pod: ContainerPod,
    config: dict[str, Any],
    name: str,
    rootfs: Callable[[], RootfsView],
    setting: Setting,
    settings: Config,
    kubernetes: Kubernetes,
) -> Draft | Unshared | None:
    """Draft the change of a pod's container, which has exactly what the pod's decision grants."""
    from cgpu_hook import decided
    from cgpu_hook.edit import apply_plan, is_legacy
    from cgpu_hook.pod import check_asked, decision_of
    from cgpu_node.facts.node import refresh_if_lost
    from cgpu_node.settings.kubernetes import SHARE

    mode = kubernetes.mode
    found = None if pod.is_sandbox else decision_of(pod, kubernetes.node)
    if found is None or pod.container not in found.containers:
        if not pod.is_sandbox:
            check_asked(pod, found, state_path(setting.state_dir))
        bare = decided.without_gpus(config)
        return None if bare == config else Unshared(bare)

    def make_request(*, refresh: bool) -> tuple[Node, HostFiles, dict[str, Any], Request]:
        node, here, own = _prepare_node(config, name, setting, settings, refresh=refresh)
        return node, here, own, decided.request_of(pod, found, mode, node, here.state_dir)

    node, here, config, request = refresh_if_lost(make_request)
    config = decided.with_variables(config, request.asked.given if request.asked else {})
    if mode == SHARE and is_legacy(config):  # NVIDIA's hook follows the variable
        return Unshared(config)
    own = here._replace(proxies=dict(node.libraries)) if mode == SHARE else here
    planned = plan_share(config, request, variables_of(config), node, rootfs(), own)
    if mode == SHARE:
        return Unshared(apply_plan(config, planned.without_limits()))
    return Draft(config, request, planned, node, here, pod.identity)


def _warn_administrator(note: str | None, name: str) -> None:
    """Warn the node's administrator: engines show what a hook writes only if it fails."""
    if note is not None:
        from cgpu_hook.systemlog import WARNING, log

        log(WARNING, "size_missing", {"container": name, "note": note, "do": MEANT})


def variables_of(config: dict[str, Any]) -> dict[str, str]:
    """The container's own environment, ``process.env`` of its configuration."""
    process = config.get("process") or {}
    return parse_environment(process.get("env") or [])


def admit_container(draft: Draft, pid: int, runtime_dir: str | None) -> None:
    """Give the container its share, owned by process ``pid`` and then by its runtime.

    Raises:
        CgpuError: there is no room for it, or the state directory cannot be written.
    """
    from cgpu_node.shares.liveness import start_time
    from cgpu_node.shares.registry import Owner, Registry

    started = start_time(pid)
    if started is None:
        raise CgpuError("the container's creator died")
    process = draft.config.get("process") or {}
    Registry(draft.host_files.state_dir).admit(
        draft.host_files.id,
        "container",
        draft.request,
        draft.node,
        Owner(pid, started, runtime_dir),
        [str(argument) for argument in process.get("args") or []],
        pod=draft.pod,
    )


def announce_container(draft: Draft) -> None:
    """Inform the server of an admitted container, after those who wait for the container."""
    from cgpu_node.server import wake_server

    wake_server(draft.host_files.state_dir, draft.node.driver_dir)


def give_back_share(draft: Draft) -> None:
    """Undo ``admit_container``."""
    from cgpu_node.shares.registry import Registry

    Registry(draft.host_files.state_dir).remove(draft.host_files.id)


def rootfs_path(config: dict[str, Any], bundle: str) -> str:
    """The absolute path of the root file system; in a configuration it may be relative.

    Raises:
        CgpuError: there is none.
    """
    path = (config.get("root") or {}).get("path")
    if not path or not isinstance(path, str):
        raise CgpuError("config.json names no root.path")
    return os.path.join(bundle, path)
