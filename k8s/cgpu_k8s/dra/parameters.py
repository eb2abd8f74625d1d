"""Reads the parameters that a claim or its DeviceClass has for our driver. Pure.

They are opaque to Kubernetes, so the API server has not checked them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError, format_suggestion, printable
from cgpu_env.request import DEFAULT_MAX_INST
from cgpu_k8s.names import CLAIM_CORES, DRIVER
from cgpu_k8s.objects.fields import get_member
from cgpu_node.settings.rules import check_number

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from cgpu_k8s.objects.fields import Json

NO_WEIGHT = 0  # of a claim to which nothing gives one
API_VERSION, KIND = f"{DRIVER}/v1alpha1", "GpuConfig"
_PRIORITIES = ("normal", "high")
_FIELDS = ("apiVersion", "kind", "weight", "priority")
_CLASS, _CLAIM = "config of its DeviceClass", "config of the claim"


class ClaimParameters(NamedTuple):
    """The parameters of a request.

    Attributes:
        weight: of its DeviceClass, or of the claim; None: neither names one.
        is_weight_own: whether the claim names the weight.
        high_priority: whether its kernels go first.
    """

    weight: int | None = None
    is_weight_own: bool = False
    high_priority: bool = False


def read_parameters(configs: Iterable[Json], request: str) -> ClaimParameters:
    """Return the parameters for a request: each one from the last config that names it.

    Args:
        configs: of the claim's allocation, in which those of the class are before the claim's.
        request: its name; a slash and the name of a subrequest may follow.

    Raises:
        CgpuError: a config for our driver is wrong, whichever requests it is for.
    """
    found, most = ClaimParameters(), NO_WEIGHT
    for config in configs:
        opaque = get_member(config, "opaque", dict)
        if opaque.get("driver") != DRIVER:
            continue
        where = _CLASS if config.get("source") == "FromClass" else _CLAIM
        given = _check_parameters(where, opaque.get("parameters"))
        names = get_member(config, "requests", list)
        if names and not {request, request.partition("/")[0]} & {*names}:
            continue
        if "weight" in given:
            if where == _CLASS:
                most = given["weight"]
            elif given["weight"] > most:
                allowed = f"at most {most}" if most else "no weight"
                raise CgpuError(
                    f"{where}: weight={given['weight']}: weight is taken from what the scheduler"
                    f" counts as free, so only a DeviceClass gives it: expected {allowed},"
                    f" {CLAIM_CORES}, or a class with that weight"
                )
            found = found._replace(weight=given["weight"], is_weight_own=where == _CLAIM)
        if "priority" in given:
            is_high = given["priority"] == "high"
            if is_high and where == _CLAIM and not found.high_priority:
                raise CgpuError(
                    f"{where}: priority=high: it takes time from what other claims were promised,"
                    " so only a DeviceClass gives it: expected normal, or a class with it"
                )
            found = found._replace(high_priority=is_high)
    return found


def _check_parameters(where: str, given: object) -> dict[str, Any]:
    """Return the parameters as they are.

    Raises:
        CgpuError: they are wrong; a sentence names the field and what is allowed.
    """
    if not isinstance(given, dict):
        raise CgpuError(f"{where}: parameters: expected an object of the kind {KIND}")
    nested = [name for name, value in given.items() if isinstance(value, (dict, list))]
    if nested:  # perhaps too deeply for a message that shows the value
        raise CgpuError(f"{where}: {printable(nested[0])}: expected a number or a text")
    for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = given.get(name)
        if value != wanted:
            state = "is missing" if value is None else f"is {printable(str(value))}"
            raise CgpuError(f"{where}: {name} {state}: expected {wanted}")
    for name in given:
        if name not in _FIELDS:
            raise CgpuError(
                f"{where}: unknown field {printable(name)}: expected {', '.join(_FIELDS)}"
                f"{format_suggestion(name, _FIELDS)}"
            )
    try:
        if "weight" in given:
            check_number("weight", given["weight"], 1, DEFAULT_MAX_INST)
    except CgpuError as error:
        raise CgpuError(f"{where}: {error}") from None
    priority = given.get("priority", _PRIORITIES[0])
    if priority not in _PRIORITIES:
        raise CgpuError(
            f"{where}: priority={printable(str(priority))}: expected {' or '.join(_PRIORITIES)}"
        )
    return given
