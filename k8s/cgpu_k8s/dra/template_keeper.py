"""Makes the ResourceClaimTemplates for which pods wait, and removes those that none names.

Each replica of the guard does this: the first one makes a template, and the others find it. If a
template is removed while a new pod needs it, it is made again, and the pod waits meanwhile. What
fails, and what somebody else has put in a template's place, delays no other template.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ConflictError, NotFoundError
from cgpu_k8s.apiserver.resource_version import get_metadata
from cgpu_k8s.apiserver.resources import CLAIM_TEMPLATES, PODS
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.apiserver.watch import DELETED, Listed, Pace, Watch
from cgpu_k8s.dra.templates import (
    OWNER,
    list_template_names,
    make_template,
    parse_template_name,
)
from cgpu_k8s.objects.fields import ObjectError, get_member, get_objects, get_strings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.apiserver.errors import ApiError, ConfigurationError

    Report = Callable[[str, dict[str, object]], None]

# Seconds that an unused template stays, so that a Job that runs every few minutes finds it.
KEPT = 600.0
# Requests after which the keeper looks again what is needed: a new pod waits for at most so many.
BATCH = 16
# Seconds between two lines of the log about templates of one namespace that fail.
QUIET = 60.0
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


class _Template(NamedTuple):
    """A template as the API server has it; without ``uid``, one that it lacks.

    ``fits``: pods get by it what its name says. ``is_ours``: the guard may also remove it.
    """

    name: TemplateName
    uid: str = ""
    fits: bool = False
    is_ours: bool = False


class _Tries(NamedTuple):
    """The number of tries of something, when the next is due, and whether the log has it."""

    number: int = 0
    due: float = 0.0
    is_reported: bool = False


class TemplateKeeper:
    """Keeps the templates of a cluster in line with its pods.

    Args:
        client: of the API server.
        report: writes a line of the log.
    """

    def __init__(self, client: Client, report: Report) -> None:
        self._client, self._report, self._pace = client, report, Pace()
        self._pods: dict[str, tuple[TemplateName, ...]] = {}  # by UID
        self._templates: dict[TemplateName, _Template] = {}
        self._unused: dict[_Template, float] = {}  # since when
        self._tries: dict[_Template, _Tries] = {}
        self._quiet: dict[str, float] = {}  # by namespace, until when the log has enough of it
        self._last = ""  # the namespace that had its turn last
        self._listed: set[str] = set()
        self._news = asyncio.Event()
        self._failures: dict[str, str] = {}  # of watches

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
        while True:
            self._news.clear()
            is_ready = self._listed == {"pods", "templates"}
            pause = await self._reconcile() if is_ready else None
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)

    async def _reconcile(self) -> float | None:
        """Do a batch of what is due; return the seconds until more may be, or None."""
        now = time.monotonic()
        times = self._list_tasks(now)
        due = sorted((when, task) for task, when in times.items() if when <= now)
        batch = _choose_batch([task for _, task in due], self._last)
        for task in batch:
            self._last = task.name.namespace
            await self._try(task)
        return 0.0 if batch else min((when - now for when in times.values()), default=None)

    def _list_tasks(self, now: float) -> dict[_Template, float]:
        """Return the templates to make, to remove and to complain about, and when.

        What else was tried and failed is forgotten.
        """
        needed = {name for names in self._pods.values() for name in names}
        found = [self._templates.get(name, _Template(name)) for name in needed]
        self._unused = {
            each: self._unused.get(each, now)
            for each in self._templates.values()
            if each.is_ours and each.name not in needed
        }
        tasks = {each: since + KEPT for each, since in self._unused.items()}
        tasks |= {each: 0.0 for each in found if not each.fits}
        self._tries = {each: tries for each, tries in self._tries.items() if each in tasks}
        self._quiet = {each: until for each, until in self._quiet.items() if until > now}
        return tasks | {each: max(tasks[each], tries.due) for each, tries in self._tries.items()}

    async def _try(self, task: _Template) -> None:
        """Do what is to be done; if it still is after a pause, it is tried again."""
        problem, namespace = "", task.name.namespace
        try:
            if not task.uid:
                await self._make(task.name)
            elif task in self._unused:
                await self._remove(task)
            else:
                problem = (
                    f"ResourceClaimTemplate {task.name} has other content than its name says, and"
                    " pods get claims by it: delete it, and the guard makes the right one"
                )
        except CgpuError as error:
            problem = str(error)
        number, _, is_reported = self._tries.get(task, _Tries())
        now = time.monotonic()
        if problem and not is_reported and namespace not in self._quiet:
            self._report("failed", {"template": str(task.name), "error": problem})
            self._quiet[namespace] = now + QUIET
            is_reported = True
        pause = self._pace.compute_pause(number + 1, random.random())  # noqa: S311
        self._tries[task] = _Tries(number + 1, now + pause, is_reported)

    async def _make(self, name: TemplateName) -> None:
        """Make a template, unless it is there, which the watch shows. Raises CgpuError."""
        shape = parse_template_name(name.name)
        assert shape is not None  # noqa: S101 (``_read_pod`` has read it)
        try:
            path = CLAIM_TEMPLATES.path(namespace=name.namespace)
            await self._client.post(path, make_template(shape))
        except ConflictError as error:
            if error.reason != "AlreadyExists":  # such as a quota that others change meanwhile
                raise
        else:
            self._report("made", {"template": str(name)})

    async def _remove(self, known: _Template) -> None:
        """Remove a template, unless it is gone or was made anew. Raises CgpuError."""
        name = known.name
        with contextlib.suppress(NotFoundError, ConflictError):
            path = CLAIM_TEMPLATES.path(name.name, namespace=name.namespace)
            await self._client.delete(path, {"preconditions": {"uid": known.uid}})
            self._report("removed", {"template": str(name)})

    def _set_failure(self, watch: str, problem: str = "") -> None:
        """Report a problem with a watch once while it lasts."""
        if problem and problem != self._failures.get(watch):
            self._report("failed", {"error": problem})
        self._failures[watch] = problem


def _choose_batch(due: Sequence[_Template], last: str) -> list[_Template]:
    """Return the next of what is due: one of each namespace in turn, from the one after ``last``.

    >>> due = [_Template(TemplateName(*each.split("/"))) for each in ("a/1", "a/2", "b/1")]
    >>> [str(each.name) for each in _choose_batch(due, "a")]
    ['b/1', 'a/1', 'a/2']
    """
    before: Counter[str] = Counter()
    turns: list[tuple[int, bool, str, int]] = []
    for index, each in enumerate(due):
        namespace = each.name.namespace
        turns.append((before[namespace], namespace <= last, namespace, index))
        before[namespace] += 1
    return [due[index] for *_, index in sorted(turns)[:BATCH]]


def _read_pod(item: Json) -> _WaitingPod:
    """Return the pod with the templates of ours that it names."""
    meta = get_metadata(item)
    namespace, uid = str(meta.get("namespace")), str(meta.get("uid"))
    names: list[str] = []
    with contextlib.suppress(ObjectError):
        names = list_template_names(get_objects(get_member(item, "spec", dict), "resourceClaims"))
    return _WaitingPod(uid, tuple(TemplateName(namespace, name) for name in names))


def _read_template(item: Json) -> _Template:
    meta = get_metadata(item)
    name = TemplateName(str(meta.get("namespace")), str(meta.get("name")))
    shape, fits, is_ours = parse_template_name(name.name), False, False
    with contextlib.suppress(ObjectError):
        if shape is not None:
            # Beside it the API server adds the claims' metadata.
            content = get_member(get_member(item, "spec", dict), "spec", dict)
            fits = content == make_template(shape)["spec"]["spec"]
            is_ours = fits and OWNER.items() <= get_strings(meta, "labels").items()
    return _Template(name, str(meta.get("uid")), fits, is_ours)
