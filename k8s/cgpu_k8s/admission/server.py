"""The guard as an HTTP server: the routes that webhook configurations name."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from cgpu_k8s.admission import reviews
from cgpu_k8s.answers import BAD, BROKEN, make_middleware, make_response
from cgpu_k8s.apiserver.errors import ApiError, NotFoundError
from cgpu_k8s.apiserver.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cgpu_k8s.admission.settings import Settings
    from cgpu_k8s.objects.fields import Json

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Report = Callable[[str, dict[str, object]], None]

ABSENT = 404
# The most bytes of a review, which has an object before and after the change. etcd stores at most
# 1.5 MiB of each, but an API server encodes "<" as six bytes.
LONGEST = 24 << 20
PATIENCE = 10.0  # seconds to wait for a body; API servers wait 5 for the response


class ObjectReader(Protocol):
    """The requests of the guard to the API server."""

    async def get(self, path: str) -> Json:
        """Return the object at a path; raise an ApiError."""
        ...


class Guard:
    """Answers the AdmissionReviews of API servers.

    Args:
        settings: the cluster's settings.
        api: a client of the API server with the right to ``get`` pods.
        report: writes a line of the log.
        words: returns the secret first segments of paths that are valid now. API servers have one
            of them from the webhook configuration.
        convert: returns the patch with which the cluster's own scheduler places a pod; see
            ``reviews.mutate``.
    """

    def __init__(
        self,
        settings: Settings,
        api: ObjectReader,
        report: Report,
        words: Callable[[], Iterable[str]],
        convert: reviews.Convert | None = None,
    ) -> None:
        self._settings, self._api, self._report, self._words = settings, api, report, words
        self._convert = convert

    def make_application(self) -> web.Application:
        """Return the routes: ``POST /WORD/validate`` and ``/WORD/mutate``, and ``GET /healthz``."""
        answer = make_middleware(self._report, f"the body is larger than {LONGEST >> 20} MiB")
        app = web.Application(middlewares=[answer], client_max_size=LONGEST)
        app.router.add_post("/{word}/validate", self._require_api_server(self._answer_validate))
        app.router.add_post("/{word}/mutate", self._require_api_server(self._answer_mutate))
        app.router.add_get("/healthz", self._show_health)
        return app

    def is_from_api_server(self, request: web.Request) -> bool:
        """Return whether an API server calls: the path begins with a secret word."""
        given = request.match_info.get("word", "").encode()
        return any(word and hmac.compare_digest(given, word.encode()) for word in self._words())

    def _require_api_server(self, handler: Handler) -> Handler:
        """Return a handler that calls ``handler``, and so parses bodies, for API servers only."""

        async def check_caller(request: web.Request) -> web.StreamResponse:
            if self.is_from_api_server(request):
                return await handler(request)
            answer = make_response(
                ABSENT, f"{request.path}: expected the path in the webhook configuration"
            )
            answer.force_close()
            return answer

        return check_caller

    async def _answer_validate(self, request: web.Request) -> web.StreamResponse:
        return await self._apply_rules(await _read_review(request))

    async def _apply_rules(self, asked: reviews.AdmissionRequest) -> web.StreamResponse:
        needed, pod = asked.find_needed_pod(self._settings), None
        if needed is not None:
            namespace, name = needed
            if not name or not namespace:
                return make_response(BAD, "a Binding without name or namespace: expected its pod's")
            try:
                pod = await self._api.get(PODS.path(name, namespace=namespace))
            except NotFoundError:
                pass  # the API server itself refuses a Binding of a pod that is not there
            except ApiError as error:
                return make_response(BROKEN, f"pod {namespace}/{name} cannot be read: {error}")
        return web.json_response(reviews.validate(asked, self._settings, pod))

    async def _answer_mutate(self, request: web.Request) -> web.StreamResponse:
        asked = await _read_review(request)
        if asked.is_node_change(self._settings):
            return await self._apply_rules(asked)
        return web.json_response(reviews.mutate(asked, self._settings, self._convert))

    async def _show_health(self, _: web.Request) -> web.StreamResponse:
        return make_response(200, "ok")


async def _read_review(request: web.Request) -> reviews.AdmissionRequest:
    try:
        body = await asyncio.wait_for(request.read(), PATIENCE)
    except asyncio.TimeoutError:
        raise reviews.ReviewError(
            f"the body took longer than {PATIENCE:g} s: expected an AdmissionReview"
        ) from None
    return reviews.read_review(body)
