"""Prepares claims: enters what the scheduler allocated into the node's registry of shares.

The same registry admits docker, ``cgpu-run`` and claims, so nothing is promised twice. All that is
kept of a claim is the registry's record and a CDI file. The file is the record's owner: it is
written before the record, and removed before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError
from cgpu_env.request import DEFAULT_MAX_INST
from cgpu_k8s.apiserver.errors import NotFoundError
from cgpu_k8s.apiserver.resources import CLAIMS
from cgpu_k8s.dra import cdi
from cgpu_k8s.dra.claims import ClaimName, list_devices, read_grant
from cgpu_k8s.dra.node_facts import KnownNode
from cgpu_k8s.dra.slices import device_name
from cgpu_k8s.kubelet.dra_plugin_api import PreparedDevice
from cgpu_k8s.objects.fields import get_member
from cgpu_node.paths import open_state, write_atomically
from cgpu_node.settings import rules
from cgpu_node.settings.config import make_defaults
from cgpu_node.shares.liveness import find_inhabited
from cgpu_node.shares.record import CLAIM, Owner
from cgpu_node.shares.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cgpu_env.request import GpuShare, Request
    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.dra.claims import ClaimGrant
    from cgpu_k8s.dra.gpus import GpuFacts
    from cgpu_k8s.kubelet.dra_plugin_api import AskedClaim
    from cgpu_node.facts.node import DeviceNode, Node
    from cgpu_node.shares.record import Record

T = TypeVar("T")
_MIB = 20


class ClaimPlace(NamedTuple):
    """The place in which claims are prepared.

    Attributes:
        node: this node's name.
        folder: of CDI specifications.
        hook: the hook that CDI files start.
        driver_dir: the directory of the driver's libraries, if it has another path here than on
            the node; None: it is searched.
        policy: under which claims share GPUs.
    """

    node: str
    folder: Path
    hook: cdi.HookPlace
    driver_dir: str | None
    policy: int


class ClaimPreparer:
    """Prepares claims, one at a time.

    Args:
        place: where claims are prepared.
        client: of the API server.
        gpus: knows which GPUs answer.
    """

    def __init__(self, place: ClaimPlace, client: Client, gpus: GpuFacts) -> None:
        self._place, self._client, self._gpus = place, client, gpus
        self._facts = KnownNode(place.hook.state_dir, place.driver_dir)
        self._registry = Registry(place.hook.state_dir)
        self._lock = asyncio.Lock()
        self._unused: set[str] = set()  # at the last look, and not prepared since

    async def warm(self) -> None:
        """Learn the facts about the node, so that the first claim need not wait for them.

        Raises:
            CgpuError: the driver does not answer.
        """
        await self._facts.load()

    async def prepare(self, claim: AskedClaim) -> list[PreparedDevice]:
        """Hold what the claim has here, unless it is held already, and return it.

        Raises:
            CgpuError, OSError: the claim cannot be given; nothing new is held for it.
        """
        name = ClaimName(*claim)
        await self._gpus.check_barrier()
        item = await self._read_claim(name)
        node, grant = await self._read_grant(name, item)
        await self._gpus.check_conflict([share.uuid for share in grant.request.gpus])
        return await self._run_whole(lambda: self._hold(node, grant))

    async def unprepare(self, claim: AskedClaim) -> None:
        """Give back what the claim has here, when no container has the claim any more.

        Raises:
            CgpuError, OSError: it cannot be given back.
        """
        await self._run_whole(lambda: self._give_back(claim.uid))

    async def recover(self) -> list[str]:
        """Give back what belongs to claims that are gone; return their UIDs.

        What containers still have is given back when they have ended.

        Raises:
            CgpuError, OSError: the existing claims cannot be listed.
        """
        records = await asyncio.to_thread(self._list_claims)
        gone = {uid for uid, record in records.items() if await self._is_gone(record)}
        return await self._run_whole(lambda: self._clear(gone))

    async def finish(self) -> None:
        """Return when what was begun for a claim is done, also of calls that were cancelled."""
        async with self._lock:
            pass

    async def give_back_unused(self) -> list[str]:
        """Give back claims that were unused at the last call, too; return their UIDs.

        A kubelet whose state was lost does not know which claims it had prepared, and never
        unprepares them. A claim is used while a container has it, or a pod has reserved it.

        Raises:
            CgpuError, OSError: who has them cannot be found out.
        """
        records = await asyncio.to_thread(self._list_idle)
        unused = {each.id for each in records if await self._is_gone(each, is_idle=True)}
        return await self._run_whole(lambda: self._clear_unused(unused))

    async def _run_whole(self, act: Callable[[], T]) -> T:
        """Run ``act`` in a thread to its end, one such call at a time.

        A kubelet's deadline cancels the call, but not the thread. The next call waits for the
        thread.
        """

        async def run() -> T:
            async with self._lock:
                return await asyncio.to_thread(act)

        return await asyncio.shield(asyncio.create_task(run()))

    async def _read_claim(self, claim: ClaimName) -> Json:
        path = CLAIMS.path(claim.name, namespace=claim.namespace)
        try:
            return await self._client.get(path)
        except NotFoundError as error:
            _require_kind(error)
            raise CgpuError(f"{claim}: the API server has none of this name any more") from None

    async def _read_grant(self, claim: ClaimName, item: Json) -> tuple[Node, ClaimGrant]:
        """Return what a claim has. It may have to ask the driver, while other claims go on."""
        place = self._place
        node = await self._facts.load()
        with contextlib.suppress(GpuLostError):
            grant = read_grant(claim, item, place.node, node.gpus, place.policy)
            if {share.uuid for share in grant.request.gpus} <= (self._gpus.answering or set()):
                return node, grant
        node = await self._facts.load(refresh=True)  # a GPU is new, lost or back
        return node, read_grant(claim, item, place.node, node.gpus, place.policy)

    def _hold(self, node: Node, grant: ClaimGrant) -> list[PreparedDevice]:
        claim, place = grant.claim, self._place
        self._unused.discard(claim.uid)
        open_state(place.hook.state_dir)  # somebody may have removed it
        path = place.folder / cdi.file_name(claim.uid)
        content = cdi.write_specification(claim.uid, _list_parts(node, grant), place.hook)
        record = self._list_claims().get(claim.uid)
        if record is not None:
            _check_unchanged(claim, record, grant.request)
        else:
            self._registry.remove(claim.uid)  # an ended one, which the new file would revive
        _write_file(claim, path, content)
        if record is None:
            self._admit(grant, node, path)
            _write_file(claim, path, content)  # an ending driver may have removed it just before
        return [
            PreparedDevice(
                each.request.partition("/")[0],  # containers name it without the alternative
                each.pool,
                each.device,
                cdi.device_id(claim.uid, each.request),
                each.share_id,
            )
            for each in grant.devices
        ]

    def _admit(self, grant: ClaimGrant, node: Node, path: Path) -> None:
        claim = grant.claim
        try:
            _check_max_inst(claim, grant.request, node, self._place.hook.state_dir)
            self._registry.admit(
                claim.uid,
                CLAIM,
                grant.request,
                node,
                Owner(0, 0, str(path)),
                [f"{claim.namespace}/{claim.name}"],
                policy=grant.policy,
            )
        except BaseException as error:
            _remove_file(path)
            if isinstance(error, CgpuError):
                raise CgpuError(f"{claim}: {error}", hint=error.hint) from None
            raise

    def _give_back(self, uid: str) -> None:
        _remove_file(self._place.folder / cdi.file_name(uid))
        self._registry.remove(uid)

    def _list_claims(self) -> dict[str, Record]:
        """Return the records of claims that are held, by UID."""
        return {each.id: each for each in self._registry.list_records() if each.kind == CLAIM}

    def _list_idle(self) -> list[Record]:
        """Return the records of claims that no container has."""
        records = self._list_claims().values()
        inhabited = find_inhabited([each.directory for each in records])
        return [each for each in records if each.directory not in inhabited]

    def _clear_unused(self, unused: set[str]) -> list[str]:
        gone, self._unused = unused & self._unused, unused
        return self._clear(gone) if gone else []

    def _clear(self, gone: set[str]) -> list[str]:
        """Remove the files of claims that are gone or not held; return the UIDs of those claims."""
        found = {*gone}
        with self._registry.lock(create=True):  # meanwhile no other driver's claim gets its record
            held = self._list_claims()
            for file in _list_files(self._place.folder):
                uid = cdi.read_uid(file.name)
                if uid is not None and uid not in held:
                    found.add(uid)
                if uid in found or cdi.is_unfinished(file.name):
                    _remove_file(file)
        ended = self._registry.find_gone()
        with self._registry.lock(create=True):
            self._registry.reap(ended)
        return sorted(found)

    async def _is_gone(self, record: Record, *, is_idle: bool = False) -> bool:
        """Return whether the API server has a claim no more.

        An idle one also needs a pod there, and to be allocated as it is held.
        """
        namespace, _, name = "".join(record.command[:1]).partition("/")
        path = CLAIMS.path(name, namespace=namespace)
        try:
            item = await self._client.get(path)
        except NotFoundError as error:
            _require_kind(error)
            return True
        if get_member(get_member(item, "metadata", dict), "uid", str) != record.id:
            return True
        status = get_member(item, "status", dict)
        here = {device_name(gpu.index) for gpu in record.gpus}
        return is_idle and (
            not get_member(status, "reservedFor", list)
            or list_devices(item, self._place.node) != here  # allocated anew, elsewhere
        )


def _list_files(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except FileNotFoundError:
        return []


def _write_file(claim: ClaimName, path: Path, content: bytes) -> None:
    """Write a claim's CDI file, unless it has this content: one may be of another hook.

    Raises:
        CgpuError: it cannot be written.
    """
    try:
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(str(path), content, 0o644)
    except OSError as error:
        raise CgpuError(
            f"{claim}: {path} cannot be written: {error.strerror}: the driver has to be able to"
            f" write to {path.parent}, and needs a few KiB there"
        ) from None


def _remove_file(path: Path) -> None:
    """Remove a CDI file if there is one.

    Raises:
        CgpuError: it cannot be removed.
    """
    try:
        path.unlink()
    except OSError as error:
        if os.path.lexists(path):  # a read-only file system refuses before it looks
            raise CgpuError(f"{path} cannot be removed: {error.strerror}") from None


def _require_kind(error: NotFoundError) -> None:
    """Raise ``error`` if the API server serves no claims at all, and so says nothing of one."""
    if error.reason != "NotFound":
        raise error


def _check_max_inst(claim: ClaimName, request: Request, node: Node, state_dir: str) -> None:
    """Refuse GPUs whose ``max_inst`` does not match the step of a claim's cores."""
    changes = rules.read_changes(state_dir)
    defaults = make_defaults(node.config, node.gpus)
    for share in request.gpus:
        most = rules.resolve(share.uuid, changes, defaults, inhabited=True).max_inst
        if most != DEFAULT_MAX_INST:
            raise CgpuError(
                f"{claim}: max_inst={most} of GPU {share.index}: expected {DEFAULT_MAX_INST} on"
                " nodes that give GPUs to claims"
            )


def _list_parts(node: Node, grant: ClaimGrant) -> Iterator[cdi.ClaimPart]:
    """Yield what a claim has for each of its requests.

    Raises:
        CgpuError: a device node is missing.
    """
    by_name = {device_name(gpu.index): gpu for gpu in node.gpus}
    for request in dict.fromkeys(each.request for each in grant.devices):
        names = [each.device for each in grant.devices if each.request == request]
        gpus = [by_name[name] for name in names]
        nodes = [*node.device_nodes, *(each for gpu in gpus for each in gpu.device_nodes)]
        uuids = tuple(gpu.uuid for gpu in gpus)
        yield cdi.ClaimPart(request, uuids, tuple(filter(_is_character, nodes)))


def _is_character(node: DeviceNode) -> bool:
    """Return whether a device node is a character device; a simulated driver has plain files.

    Raises:
        CgpuError: it is missing.
    """
    try:
        return stat.S_ISCHR(os.lstat(node.host).st_mode)
    except OSError as error:
        raise CgpuError(f"device {node.host}: {error.strerror}") from None


def _check_unchanged(claim: ClaimName, record: Record, request: Request) -> None:
    """Refuse a claim whose allocation differs from what is held for it."""
    if record.gpus != request.gpus or record.weight != request.weight:
        raise CgpuError(
            f"{claim}: this node holds {_format(record.gpus, record.weight)} for it, and its"
            f" allocation says {_format(request.gpus, request.weight)}: delete its pods"
        )


def _format(gpus: tuple[GpuShare, ...], weight: int) -> str:
    # With the UUID: the driver may have numbered the GPUs anew.
    parts = ", ".join(
        f"{gpu.cap_bytes >> _MIB} MiB of GPU {gpu.index} ({gpu.uuid})" for gpu in gpus
    )
    return f"{parts} with weight {weight}" if weight else f"{parts} without cores"
