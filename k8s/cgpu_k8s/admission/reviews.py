"""AdmissionReviews (``admission.k8s.io/v1``): requests to webhooks and their responses; pure."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s import names
from cgpu_k8s.admission.rules import BOUND, NODES, Review, event_applies, find_refusal
from cgpu_k8s.objects.fields import get_member
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.admission.settings import Settings
    from cgpu_k8s.objects.fields import Json

    Convert = Callable[[Json], list[dict[str, Any]]]

VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_FORBIDDEN = 403
# The keys in the user's ``extra`` for the name and the UID of the pod to which a token is bound.
_POD = ("authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid")


class ReviewError(CgpuError):
    """The body is not an AdmissionReview of version 1."""


class AdmissionRequest(NamedTuple):
    """A request of the API server.

    Attributes:
        uid: the request's UID, which the response repeats.
        namespace: the object's namespace.
        name: the object's name, for a Binding the pod's; "" if it has none yet.
        review: what the rules see of the request.
        pod: name and UID of the pod to which the user's token is bound; both "" if there is none.
    """

    uid: str
    namespace: str
    name: str
    review: Review
    pod: tuple[str, str] = ("", "")

    def is_binding(self, settings: Settings) -> bool:
        """Return whether a user other than the scheduler binds a pod."""
        return event_applies(BOUND, self.review, settings)

    def is_node_change(self, settings: Settings) -> bool:
        """Return whether an agent changes a node."""
        return event_applies(NODES, self.review, settings)

    def find_needed_pod(self, settings: Settings) -> tuple[str, str] | None:
        """Return namespace and name of the pod that ``validate`` needs; None if it needs none."""
        if self.is_binding(settings):
            return self.namespace, self.name
        if self.is_node_change(settings) and self.pod[0]:
            return settings.agent.split(":")[2], self.pod[0]
        return None


def read_review(data: bytes) -> AdmissionRequest:
    """Return the request in a body.

    Raises:
        ReviewError: the body is not an AdmissionReview of version 1 in JSON.
        ObjectError: a member does not have the type that Kubernetes' API defines.
    """
    try:
        sent = json.loads(data)
    except (ValueError, RecursionError):
        raise ReviewError("the body is not JSON: expected an AdmissionReview") from None
    if not isinstance(sent, dict):
        raise ReviewError("the body is not an object: expected an AdmissionReview")
    for key, expected in (("kind", KIND), ("apiVersion", VERSION)):
        if sent.get(key) != expected:
            raise ReviewError(f"{key}={printable(str(sent.get(key)))}: expected {expected}")
    request = get_member(sent, "request", dict)
    uid = get_member(request, "uid", str)
    if not uid:
        raise ReviewError("request.uid is empty: expected what the answer is to repeat")
    resource = get_member(get_member(request, "resource", dict), "resource", str)
    part = get_member(request, "subResource", str)
    item = get_member(request, "object", dict)
    about = get_member(request, "userInfo", dict)
    extra = get_member(about, "extra", dict)
    name, pod_uid = ("".join(get_member(extra, each, list)[:1]) for each in _POD)
    return AdmissionRequest(
        uid,
        get_member(request, "namespace", str),
        get_member(request, "name", str)
        or get_member(get_member(item, "metadata", dict), "name", str),
        Review(
            operation=get_member(request, "operation", str),
            resource=f"{resource}/{part}" if part else resource,
            user=get_member(about, "username", str),
            item=item,
            before=get_member(request, "oldObject", dict) or None,
        ),
        (name, pod_uid),
    )


def validate(
    asked: AdmissionRequest, settings: Settings, pod: Json | None = None
) -> dict[str, Any]:
    """Return the response that admits or refuses a request.

    The rules decide. In addition, only the scheduler may bind a pod that asks for GPUs.

    Args:
        asked: the request.
        settings: the cluster's settings.
        pod: the pod that ``asked.find_needed_pod`` names; None if there is none.

    Raises:
        ObjectError: the object or ``pod`` is not as Kubernetes' API defines it.
    """
    sentence = find_refusal(
        asked.review._replace(node=_find_token_node(asked, pod or {})), settings
    )
    if (
        not sentence
        and pod is not None
        and asked.is_binding(settings)
        and read_pod(pod).asks_for_gpu
    ):
        sentence = (
            f"pod {asked.namespace}/{asked.name} asks for {names.ASKED}: only cgpu's scheduler"
            f" may bind it, not {printable(asked.review.user)}"
        )
    return _make_response(asked, sentence)


def _find_token_node(asked: AdmissionRequest, pod: Json) -> str:
    """Return the node of ``pod`` if the user's token is bound to this pod, else ""."""
    uid = get_member(get_member(pod, "metadata", dict), "uid", str)
    node = get_member(get_member(pod, "spec", dict), "nodeName", str)
    return node if uid == asked.pod[1] else ""


def mutate(
    asked: AdmissionRequest, settings: Settings, convert: Convert | None = None
) -> dict[str, Any]:
    """Return the response that sends a new pod that asks for GPUs to cgpu's scheduler.

    The pod also gets the cluster's runtime class, if ``settings`` has one. Values that the pod
    already has stay; ``validate`` refuses wrong ones. The call has no side effects, so a dry run
    gets the same response.

    Args:
        asked: the request.
        settings: of the cluster.
        convert: returns the patch with which the cluster's own scheduler places a pod; empty: ours
            does. A pod that is to be refused goes to ours, because it asks for nothing afterwards.

    Raises:
        ObjectError: the object is not a pod.
    """
    review = asked.review
    creates_pod = (review.operation, review.resource) == ("CREATE", "pods")
    if not creates_pod or not read_pod(review.item).asks_for_gpu:
        return _make_response(asked)
    spec = get_member(review.item, "spec", dict)
    named = get_member(spec, "schedulerName", str)
    if convert:
        sent = {**review.item, "spec": {**spec, "schedulerName": settings.schedulers[0]}}
        refused = find_refusal(review._replace(item=sent), settings)
        converted = [] if refused else convert(review.item)
        if converted:
            return _make_response(asked, patch=converted)
    patch: list[dict[str, Any]] = []
    if named in names.UNCHOSEN and named not in settings.schedulers:
        patch.append(_make_patch("schedulerName", settings.schedulers[0]))
    if settings.runtime_class and not get_member(spec, "runtimeClassName", str):
        patch.append(_make_patch("runtimeClassName", settings.runtime_class))
    return _make_response(asked, patch=patch)


def _make_patch(name: str, value: str) -> dict[str, Any]:
    return {"op": "add", "path": f"/spec/{name}", "value": value}  # or replace


def _make_response(
    asked: AdmissionRequest, sentence: str = "", patch: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": asked.uid, "allowed": not sentence}
    if sentence:
        response["status"] = {"code": _FORBIDDEN, "message": f"cgpu: {sentence}"}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"apiVersion": VERSION, "kind": KIND, "response": response}
