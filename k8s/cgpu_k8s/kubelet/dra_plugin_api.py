"""The kubelet's interfaces for DRA drivers, with the numbers it documents. Pure.

``pluginregistration`` is how a kubelet gets to know a driver, ``dra.v1`` how it has claims
prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.kubelet.protobuf import decode_text, decode_values, encode_message

if TYPE_CHECKING:
    from collections.abc import Mapping

REGISTRATION = "pluginregistration.Registration"  # whose package has no version in its name
HEALTH = "v1alpha1.DRAResourceHealth"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_TYPE, _VERSION = "DRAPlugin", "v1.DRAPlugin"
# Fields of PluginInfo, and of RegistrationStatus.
_INFO_TYPE, _INFO_NAME, _INFO_ENDPOINT, _INFO_VERSIONS = 1, 2, 3, 4
_STATUS_ERROR = 2
# Fields of requests; of Claim; of responses, which map UIDs to answers; and of Device.
_CLAIMS = 1
_NAMESPACE, _UID, _NAME = 1, 2, 3
_ANSWERS, _KEY, _VALUE = 1, 1, 2
_DEVICES, _PREPARE_ERROR, _UNPREPARE_ERROR = 1, 2, 1
_REQUESTS, _POOL, _DEVICE, _CDI, _SHARE = 1, 2, 3, 4, 5


class AskedClaim(NamedTuple):
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str


class PreparedDevice(NamedTuple):
    """A device of a claim that is ready.

    Attributes:
        request: of the claim, for which it was allocated.
        pool: whose it is.
        device: its name there.
        cdi_id: by which the engine gives it to a container.
        share_id: of this part of it; "": it has none.
    """

    request: str
    pool: str
    device: str
    cdi_id: str
    share_id: str


def encode_plugin_info(driver: str, endpoint: str) -> bytes:
    """Return a PluginInfo: ``endpoint`` is the path of the driver's own socket."""
    fields = (
        (_INFO_TYPE, _TYPE),
        (_INFO_NAME, driver),
        (_INFO_ENDPOINT, endpoint),
        (_INFO_VERSIONS, _VERSION),
    )
    return encode_message((number, text.encode()) for number, text in fields)


def read_registration_error(status: bytes) -> str:
    """Return why the kubelet does not take the driver, from a RegistrationStatus; "": it does.

    Raises:
        ValueError, IndexError: it is none.
    """
    return decode_text(status, _STATUS_ERROR)


def read_claims(request: bytes) -> list[AskedClaim]:
    """Return the claims of a request.

    Raises:
        ValueError, IndexError: it is none.
    """
    return [
        AskedClaim(*(decode_text(each, number) for number in (_UID, _NAMESPACE, _NAME)))
        for each in decode_values(request, _CLAIMS)
    ]


def encode_prepared(answers: Mapping[str, list[PreparedDevice] | str]) -> bytes:
    """Return a NodePrepareResourcesResponse: for each UID the devices, or an error's sentence."""
    return _encode_answers(
        {
            uid: [(_PREPARE_ERROR, found.encode())]
            if isinstance(found, str)
            else [(_DEVICES, _encode_device(each)) for each in found]
            for uid, found in answers.items()
        }
    )


def encode_unprepared(answers: Mapping[str, str]) -> bytes:
    """Return a NodeUnprepareResourcesResponse: for each UID an error's sentence; "": none."""
    return _encode_answers(
        {
            uid: [(_UNPREPARE_ERROR, error.encode())] if error else []
            for uid, error in answers.items()
        }
    )


def _encode_answers(answers: Mapping[str, list[tuple[int, bytes]]]) -> bytes:
    return encode_message(
        (_ANSWERS, encode_message([(_KEY, uid.encode()), (_VALUE, encode_message(fields))]))
        for uid, fields in answers.items()
    )


def _encode_device(device: PreparedDevice) -> bytes:
    fields = [
        (_REQUESTS, device.request),
        (_POOL, device.pool),
        (_DEVICE, device.device),
        (_CDI, device.cdi_id),
    ]
    if device.share_id:
        fields.append((_SHARE, device.share_id))
    return encode_message((number, text.encode()) for number, text in fields)
