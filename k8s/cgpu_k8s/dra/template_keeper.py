"""Makes the ResourceClaimTemplates for which pods wait, and removes those that none names.

Each replica of the guard does this: the first one makes a template, and the others find it. If a
template is removed while a new pod needs it, it is made again, and the pod waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ConflictError, NotFoundError
from cgpu_k8s.apiserver.resource_version import get_metadata
from cgpu_k8s.apiserver.resources import CLAIM_TEMPLATES, PODS
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.apiserver.watch import DELETED, Listed, Pace, Watch
from cgpu_k8s.dra.templates import OWNER, make_template, parse_template_name
from cgpu_k8s.objects.fields import ObjectError, get_member, get_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.apiserver.errors import ApiError, ConfigurationError

    Report = Callable[[str, dict[str, object]], None]

# Seconds that an unused template stays, so that a Job that runs every few minutes finds it.
KEPT = 600.0
# Pods that may still need a claim.
_LIVING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class TemplateName(NamedTuple):
    """A template: namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the template's name in the log."""
        return f"{self.namespace}/{self.name}"


class _WaitingPod(NamedTuple):
    uid: str
    needed: tuple[TemplateName, ...]


class _KnownTemplate(NamedTuple):
    name: TemplateName
    uid: str
    is_ours: bool


class TemplateKeeper:
    """Keeps the templates of a cluster in line with its pods.

    Args:
        client: of the API server.
        report: writes a line of the log.
    """

    def __init__(self, client: Client, report: Report) -> None:
        self._client, self._report, self._pace = client, report, Pace()
        self._pods: dict[str, tuple[TemplateName, ...]] = {}  # by UID
        self._templates: dict[TemplateName, _KnownTemplate] = {}
        self._unused: dict[_KnownTemplate, float] = {}  # unused since
        self._listed: set[str] = set()
        self._news = asyncio.Event()
        self._failures: dict[object, str] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        await run_together(self._follow_pods(), self._follow_templates(), self._run_loop())

    async def _follow_pods(self) -> None:
        watch = Watch(
            self._client,
            PODS.path(),
            _read_pod,
            _LIVING,
            report=lambda error: self._note_error("pods", error),
        )
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    self._pods = {each.uid: each.needed for each in event.items if each.needed}
                elif not self._update_pod(event.item, is_gone=event.kind == DELETED):
                    continue  # as with most events
                self._mark_listed("pods")

    def _update_pod(self, pod: _WaitingPod, *, is_gone: bool) -> bool:
        """Record a pod; return whether it needs other templates than before."""
        needed = () if is_gone else pod.needed
        before = self._pods.pop(pod.uid, ())
        if needed:
            self._pods[pod.uid] = needed
        return needed != before

    async def _follow_templates(self) -> None:
        watch = Watch(
            self._client,
            CLAIM_TEMPLATES.path(),
            _read_template,
            report=lambda error: self._note_error("templates", error),
        )
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    self._templates = {each.name: each for each in event.items}
                elif event.kind == DELETED:
                    self._templates.pop(event.item.name, None)
                else:
                    self._templates[event.item.name] = event.item
                self._mark_listed("templates")

    def _note_error(self, kind: str, error: ApiError | ConfigurationError) -> None:
        self._set_failure(kind, str(error))

    def _mark_listed(self, kind: str) -> None:
        self._listed.add(kind)
        self._set_failure(kind, "")
        self._news.set()

    async def _run_loop(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            pauses: list[float] = []
            if self._listed == {"pods", "templates"}:
                failures = 0 if await self._reconcile() else failures + 1
                pauses = [since + KEPT - time.monotonic() for since in self._unused.values()]
            if failures:
                pauses = [self._pace.compute_pause(failures, random.random())]  # noqa: S311
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(pauses, default=None))

    async def _reconcile(self) -> bool:
        """Make and remove the templates that are due; return False if any of that failed."""
        needed = {name for names in self._pods.values() for name in names}
        made = [await self._make(name) for name in sorted(needed - self._templates.keys())]
        now = time.monotonic()
        unused = [
            each for each in self._templates.values() if each.is_ours and each.name not in needed
        ]
        self._unused = {each: self._unused.get(each, now) for each in unused}
        due = [each for each, since in self._unused.items() if now - since >= KEPT]
        removed = [await self._remove(each) for each in due]
        return all(made) and all(removed)

    async def _make(self, name: TemplateName) -> bool:
        """Make a template; return False if that failed."""
        shape = parse_template_name(name.name)
        assert shape is not None  # noqa: S101 (``_read_pod`` has read it)
        try:
            path = CLAIM_TEMPLATES.path(namespace=name.namespace)
            await self._client.post(path, make_template(shape))
        except ConflictError:
            pass  # another replica was first, which the watch shows
        except CgpuError as error:
            return self._set_failure(name, str(error))
        else:
            self._report("made", {"template": str(name)})
        return self._set_failure(name)

    async def _remove(self, known: _KnownTemplate) -> bool:
        """Remove a template, unless it was made anew; return False if that failed."""
        name = known.name
        try:
            path = CLAIM_TEMPLATES.path(name.name, namespace=name.namespace)
            await self._client.delete(path, {"preconditions": {"uid": known.uid}})
        except (NotFoundError, ConflictError):
            pass  # another replica was first
        except CgpuError as error:
            return self._set_failure(name, str(error))
        else:
            self._report("removed", {"template": str(name)})
        del self._unused[known]
        if self._templates.get(name) == known:
            del self._templates[name]
        return self._set_failure(name)

    def _set_failure(self, about: object, problem: str = "") -> bool:
        """Report a problem with something once while it lasts; return whether there is none."""
        if problem and problem != self._failures.get(about):
            self._report("failed", {"error": problem})
        self._failures.pop(about, None)
        if problem:
            self._failures[about] = problem
        return not problem


def _read_pod(item: Json) -> _WaitingPod:
    """Return the pod with the templates of ours that it names."""
    meta = get_metadata(item)
    namespace, uid = str(meta.get("namespace")), str(meta.get("uid"))
    names: list[str] = []
    with contextlib.suppress(ObjectError):
        spec = get_member(item, "spec", dict)
        names = [
            get_member(each, "resourceClaimTemplateName", str)
            for each in get_objects(spec, "resourceClaims")
        ]
    ours = filter(parse_template_name, dict.fromkeys(names))
    return _WaitingPod(uid, tuple(TemplateName(namespace, name) for name in ours))


def _read_template(item: Json) -> _KnownTemplate:
    meta = get_metadata(item)
    name = TemplateName(str(meta.get("namespace")), str(meta.get("name")))
    labels = meta.get("labels") or {}
    is_ours = all(labels.get(key) == value for key, value in OWNER.items())
    return _KnownTemplate(name, str(meta.get("uid")), is_ours)
