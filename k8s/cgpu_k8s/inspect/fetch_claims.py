"""Reads what is shown of claims from the API server.

The user may have no right to some kinds, or the cluster may lack them: then the rest is shown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ForbiddenError, NotFoundError
from cgpu_k8s.apiserver.resources import CLAIMS, DEVICE_CLASSES, PODS, SLICES
from cgpu_k8s.inspect.claims import ClaimFacts
from cgpu_k8s.inspect.listing import list_objects
from cgpu_k8s.names import DRIVER
from cgpu_k8s.objects.claims import read_claim, read_claiming_pod, read_devices, read_own_class
from cgpu_k8s.objects.fields import get_member

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cgpu_k8s.apiserver.client import Client
    from cgpu_k8s.objects.claims import ClaimingPod, OfferedDevice, PodClaim

T = TypeVar("T")
_NO_KIND = "the cluster has no claims (resource.k8s.io/v1)"
_LIVING = "status.phase!=Succeeded,status.phase!=Failed"


async def fetch_claims(
    client: Client, node: str = "", pod: ClaimingPod | None = None
) -> ClaimFacts:
    """Fetch the devices of all nodes, or of one, and all claims; what cannot be had is no error.

    Args:
        client: of the API server.
        node: the name of the only node; "": all nodes.
        pod: the only pod without a node that is of interest; None: all are listed.
    """
    where = f"spec.nodeName={node}," if node else ""
    fields = {"fieldSelector": f"{where}spec.driver={DRIVER}"}
    slices, claims, classes, waiting = await asyncio.gather(
        _try(list_objects(client, SLICES.path(), fields, _read_slice)),
        _try(list_objects(client, CLAIMS.path(), {}, read_claim)),
        _try(list_objects(client, DEVICE_CLASSES.path(), {}, read_own_class)),
        _try(_list_waiting(client, is_needed=not node and pod is None)),
    )
    found, problem = claims
    if found is None and pod is not None and problem != _NO_KIND:
        found = await _get_claims(client, pod)
    devices: dict[str, list[OfferedDevice]] = {}
    for name, offered in slices[0] or ():
        devices.setdefault(name, []).extend(offered)
    own = [each for each in classes[0] or () if each is not None]
    return ClaimFacts(
        devices,
        None if found is None else {(each.namespace, each.name): each for each in found},
        waiting[0] or (),
        frozenset((DRIVER, *(each.name for each in own))),
        {resource: each.name for each in own for resource in each.resources},
        slices[1] or problem,
    )


async def _try(asked: Awaitable[list[T]]) -> tuple[list[T] | None, str]:
    """Return what was found, or None and why there is nothing."""
    try:
        return await asked, ""
    except ForbiddenError as error:
        return None, f"you have no right to it: {error}"
    except NotFoundError:
        return None, _NO_KIND
    except CgpuError as error:
        return None, str(error)


def _read_slice(item: dict[str, Any]) -> tuple[str, list[OfferedDevice]]:
    return get_member(get_member(item, "spec", dict), "nodeName", str), read_devices(item)


async def _list_waiting(client: Client, *, is_needed: bool) -> list[ClaimingPod]:
    if not is_needed:
        return []
    query = {"fieldSelector": f"spec.nodeName=,{_LIVING}"}
    found = await list_objects(client, PODS.path(), query, read_claiming_pod)
    return [each for each in found if each is not None]


async def _get_claims(client: Client, pod: ClaimingPod) -> list[PodClaim] | None:
    """Return a pod's own claims; None if they may not be read either."""
    paths = [CLAIMS.path(name, namespace=pod.namespace) for name in pod.claims if name]
    try:
        found = await asyncio.gather(*(_get_claim(client, path) for path in paths))
    except CgpuError:
        return None
    return [each for each in found if each is not None]


async def _get_claim(client: Client, path: str) -> PodClaim | None:
    try:
        return read_claim(await client.get(path))
    except NotFoundError:
        return None
