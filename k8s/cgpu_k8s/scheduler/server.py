"""The extender's HTTP server, which reads calls and writes answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cgpu_env.errors import CgpuError
from cgpu_env.version import VERSION
from cgpu_k8s.answers import make_middleware, make_response
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.binding import REFUSED, Binder, BindError
from cgpu_k8s.scheduler.inspection import inspect_nodes
from cgpu_k8s.scheduler.leader_lease import read_clock
from cgpu_k8s.scheduler.metrics import Metrics
from cgpu_k8s.scheduler.scheduling import Scheduling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.leader_lease import LeaderLease, WritingClient

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Report = Callable[[str, dict[str, object]], None]

PREFIX = "/gpushare-scheduler"
UNREADY, ABSENT = 503, 404
# Seconds for which a call may wait until the cache of a new leader is complete, and between two
# looks at it. If the call failed, the scheduler would try the pod again only when the cluster
# changes, or a minute later.
BEGINNING, LOOK = 10.0, 0.05
# Seconds for which a refusal waits for events that the scheduler may have received before us. After
# a wait in vain, no refusal waits for BETWEEN seconds, because each wait blocks the scheduler.
BEHIND, BETWEEN = 0.1, 1.0


class UnreadyError(CgpuError):
    """The cache is not complete yet."""


class Extender:
    """Answers a scheduler's calls.

    Args:
        cache: the scheduler's cache.
        api: a client of the API server.
        leader_lease: the state of our scheduler's lease; None if it is the only scheduler, which
            has no lease.
        missing: returns what the cache lacks; "" if it is complete.
        heard: returns when the API server last sent anything, by kind of object.
        report: writes a line of the log.

    Attributes:
        binder: sends the bindings.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what it connects)
        self,
        cache: SchedulerCache,
        api: WritingClient,
        leader_lease: LeaderLease | None,
        missing: Callable[[], str],
        heard: Callable[[], dict[str, float | None]],
        report: Report,
    ) -> None:
        self.binder = Binder(cache, api, self.find_problem)
        self._cache, self._leader_lease, self._missing, self._report = (
            cache,
            leader_lease,
            missing,
            report,
        )
        self._metrics = Metrics(cache, heard, self.find_problem)
        self._answer = make_middleware(
            report, extender_api.make_length_error(), {UnreadyError: UNREADY}
        )
        self._task: asyncio.Future[dict[str, CgpuError]] | None = (
            None  # the loop has only weak references
        )
        self._next_wait = 0.0  # no refusal waits before this time.monotonic()
        self._scheduling = Scheduling(cache)

    def make_application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(middlewares=[self._answer], client_max_size=extender_api.LONGEST)
        calls = {
            "filter": self._answer_filter,
            "prioritize": self._answer_prioritize,
            "preempt": self._answer_preempt,
            "bind": self._answer_bind,
        }
        for verb, call in calls.items():
            app.router.add_route("*", f"{PREFIX}/{verb}", self._wrap_call(verb, call))
        shown = {
            f"{PREFIX}/inspect": self._show_inspection,
            f"{PREFIX}/inspect/{{node}}": self._show_inspection,
            f"{PREFIX}/version": self._show_version,
            "/version": self._show_version,
            "/healthz": self._show_health,
        }
        for path, show in shown.items():
            app.router.add_get(path, show)
        self._add_public_routes(app)
        return app

    def make_public_application(self) -> web.Application:
        """Return the routes that anybody may call: metrics and readiness."""
        app = web.Application(middlewares=[self._answer])
        self._add_public_routes(app)
        return app

    def _add_public_routes(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/readyz", self._show_readiness)

    def _wrap_call(self, verb: str, call: Callable[[bytes], Awaitable[object]]) -> Handler:
        async def answer_call(request: web.Request) -> web.StreamResponse:
            if request.method != "POST":
                raise extender_api.CallError(f"{request.method} {request.path}: expected POST")
            body = await request.read()
            with self._metrics.calls.labels(verb).time():
                answer = await call(body)
            return web.json_response(answer)

        return answer_call

    async def _answer_filter(self, body: bytes) -> object:
        asked = extender_api.read_extender_args(body)
        await self._expect_complete(asked.pod.namespace)
        refused = Counter[str]()
        answer = self._scheduling.filter(asked, refused)
        if not answer["NodeNames"] and await self._hear_of_room(asked.pod.uid):
            refused.clear()
            answer = self._scheduling.filter(asked, refused)
        for code, nodes in refused.items():
            self._metrics.refusals.labels(code).inc(nodes)
        if self._cache.groups.unwritten and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self.binder.reservations.write_all())
        return answer

    async def _hear_of_room(self, uid: str) -> bool:
        """Return whether a refused pod may have room after all; wait for an event if necessary.

        kube-scheduler asks about a pod when it is created, and again after an event. If the cache
        has received neither, the scheduler's watch is ahead of ours. A pod that is refused then
        would wait until something else happens, for up to five minutes.
        """
        cache, freed, now = self._cache, self._cache.freed, time.monotonic()
        if self._knows_pod(uid) and cache.refused.get(uid) != freed:
            cache.refused[uid] = freed
            return False
        if now < self._next_wait:
            return False
        while cache.freed == freed and time.monotonic() < now + BEHIND:  # noqa: ASYNC110
            await asyncio.sleep(BEHIND / 20)
        self._next_wait = time.monotonic() + BETWEEN * (cache.freed == freed)
        if self._knows_pod(uid):
            cache.refused[uid] = cache.freed
        return cache.freed != freed

    def _knows_pod(self, uid: str) -> bool:
        return uid in self._cache.pods or self._cache.policies.has_pod(uid)

    async def _answer_prioritize(self, body: bytes) -> object:
        asked = extender_api.read_extender_args(body)
        await self._expect_complete(asked.pod.namespace)
        return self._scheduling.prioritize(asked)

    async def _answer_preempt(self, body: bytes) -> object:
        asked = extender_api.read_preemption_args(body)
        await self._expect_complete(asked.pod.namespace)
        return self._scheduling.preempt(asked)

    async def _expect_complete(self, namespace: str) -> None:
        def find_missing() -> str:
            return self._missing() or self._cache.policies.find_unlisted(namespace)

        if problem := await _wait_past_beginning(find_missing, lambda: True):
            raise UnreadyError(problem)

    async def _answer_bind(self, body: bytes) -> object:
        asked = extender_api.read_binding_args(body)
        outcome, error = await self._try_bind(asked)
        self._metrics.bindings.labels(outcome).inc()
        if error:
            pod = f"{asked.namespace}/{asked.name}"
            self._report("not_bound", {"pod": pod, "node": asked.node, "error": error})
        return {"Error": error}

    async def _try_bind(self, asked: extender_api.ExtenderBindingArgs) -> tuple[str, str]:
        """Return the outcome, and a problem or an empty string."""
        began = time.monotonic()
        if problem := await _wait_past_beginning(self.find_problem, self._is_beginning):
            return REFUSED, problem
        try:
            # If the scheduler closes the connection, the binding goes on, so its outcome is known.
            return await asyncio.shield(self.binder.bind(asked, began)), ""
        except BindError as error:
            return error.outcome, str(error)

    def find_problem(self) -> str:
        """Return why no pod may be bound now; "" if pods may."""
        fenced = self._leader_lease.find_problem(read_clock()) if self._leader_lease else ""
        return fenced or self._missing()

    def _is_beginning(self) -> bool:
        """Return whether the reason why no pod may be bound will soon end by itself."""
        leader_lease = self._leader_lease
        return (
            leader_lease is None
            or leader_lease.is_beginning
            or not leader_lease.find_problem(read_clock())
        )

    async def _show_inspection(self, request: web.Request) -> web.StreamResponse:
        found = inspect_nodes(self._cache, request.match_info.get("node", ""))
        return web.json_response(found, status=ABSENT if "error" in found else 200)

    async def _show_version(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"version": VERSION})

    async def _show_metrics(self, _: web.Request) -> web.StreamResponse:
        # Written in a thread, so that calls are answered meanwhile: 8,000 GPUs are 1.8 MB of text.
        page = await asyncio.to_thread(generate_latest, self._metrics.take_snapshot())
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _show_readiness(self, _: web.Request) -> web.StreamResponse:
        problem = self._missing()
        return make_response(UNREADY if problem else 200, problem or "ready")

    async def _show_health(self, _: web.Request) -> web.StreamResponse:
        return make_response(200, "alive")


async def _wait_past_beginning(problem: Callable[[], str], begins: Callable[[], bool]) -> str:
    """Wait while there is a problem and ``begins`` returns True, for at most BEGINNING seconds.

    Return the problem that is left; "" if there is none.
    """
    deadline = time.monotonic() + BEGINNING
    while (left := problem()) and begins() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK)
    return left
