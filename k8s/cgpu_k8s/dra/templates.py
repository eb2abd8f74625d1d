"""The ResourceClaimTemplates for pods with published resources: one for each shape. Pure."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_k8s.dra.slices import API, CORE_STEP, WHOLE_CORES, format_mib
from cgpu_k8s.names import CLAIM_CORES, CLAIM_MEMORY, DRIVER
from cgpu_k8s.objects.fields import get_member
from cgpu_k8s.objects.pods import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.pod_request import Part

OWNER = {"app.kubernetes.io/managed-by": "cgpu-guard"}  # the label of our templates
# Templates that are made for one pod: each container names one at most, and hardly so many ask for
# different amounts.
MOST_NAMES = 64
_MIB_PER_UNIT = 1024
_NUMBER = r"[1-9][0-9]{0,8}"  # in MiB less than 1 PiB, so that ``format_mib`` knows the unit
_NAME = re.compile(
    rf"cgpu-(?:mem-(?P<mib>{_NUMBER})(?:-core-(?P<cores>{_NUMBER}))?|whole)"
    rf"(?:-count-(?P<gpus>{_NUMBER}))?"
)


class ClaimShape(NamedTuple):
    """The part that one container has of each of its GPUs.

    Attributes:
        mib: of memory; 0: the whole GPU.
        cores: hundredths of its time; 0: none is named.
        gpus: how many GPUs.
    """

    mib: int
    cores: int = 0
    gpus: int = 1

    @property
    def name(self) -> str:
        """Return the name of its template, which differs from that of every other shape.

        >>> ClaimShape(4096, 30, 2).name, ClaimShape(4096).name, ClaimShape(0).name
        ('cgpu-mem-4096-core-30-count-2', 'cgpu-mem-4096', 'cgpu-whole')
        """
        core = f"-core-{self.cores}" if self.cores else ""
        count = f"-count-{self.gpus}" if self.gpus > 1 else ""
        return (f"cgpu-mem-{self.mib}{core}" if self.mib else "cgpu-whole") + count


def shape_part(part: Part, gpus: int) -> ClaimShape:
    """Return the shape of a container that has ``part`` of each of ``gpus`` GPUs.

    >>> shape_part(Part(4, 30), 2)
    ClaimShape(mib=4096, cores=30, gpus=2)
    """
    return ClaimShape(part.units * _MIB_PER_UNIT, part.cores, gpus)


def parse_template_name(name: str) -> ClaimShape | None:
    """Return the shape whose template has this name; None: it is no name of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    shape = ClaimShape(int(found["mib"] or 0), int(found["cores"] or 0), int(found["gpus"] or 1))
    fits = (
        shape.mib % _MIB_PER_UNIT == 0
        and shape.cores % CORE_STEP == 0
        and shape.cores <= WHOLE_CORES
        and shape.gpus <= MOST_GPUS
    )
    return shape if fits and shape.name == name else None


def list_template_names(claims: Iterable[Json]) -> list[str]:
    """Return which templates of ours the claims of a pod name, MOST_NAMES at most.

    Raises:
        ObjectError: they are no claims of a pod.
    """
    names = dict.fromkeys(get_member(each, "resourceClaimTemplateName", str) for each in claims)
    return [*islice(filter(parse_template_name, names), MOST_NAMES)]


def make_template(shape: ClaimShape) -> dict[str, Any]:
    """Return the template for claims of a shape, as it is stored, without a namespace."""
    exactly: dict[str, Any] = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": shape.gpus,
    }
    if shape.mib:
        cores = {CLAIM_CORES: str(shape.cores)} if shape.cores else {}
        exactly["capacity"] = {"requests": {CLAIM_MEMORY: format_mib(shape.mib), **cores}}
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": shape.name, "labels": dict(OWNER)},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
