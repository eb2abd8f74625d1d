"""The guard as an HTTP server: the routes that webhook configurations name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from cgpu_env.errors import CgpuError
from cgpu_env.logline import location
from cgpu_k8s.api.errors import ApiError, NotFoundError
from cgpu_k8s.api.resources import PODS
from cgpu_k8s.guard import reviews

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cgpu_k8s.guard.settings import Settings
    from cgpu_k8s.objects.fields import Json

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Report = Callable[[str, dict[str, object]], None]

LONGEST = 8 << 20  # bytes of a review: an object before and after, 3 MiB at most each
BAD, BROKEN = 400, 500


class Api(Protocol):
    """What the guard asks the API server."""

    async def get(self, path: str) -> Json:
        """The object at a path; raises an ApiError."""
        ...


class Guard:
    """Answers an API server's reviews.

    Args:
        settings: of the cluster.
        api: of the API server; needs the right to ``get`` pods.
        report: writes a line of the log.
    """

    def __init__(self, settings: Settings, api: Api, report: Report) -> None:
        self._settings, self._api, self._report = settings, api, report

    def application(self) -> web.Application:
        """The server's routes: ``POST /validate`` and ``/mutate``, ``GET /healthz``."""
        app = web.Application(middlewares=[self._answer], client_max_size=LONGEST)
        app.router.add_post("/validate", self._validate)
        app.router.add_post("/mutate", self._mutate)
        app.router.add_get("/healthz", self._healthy)
        return app

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into one sentence."""
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _sentence(BAD, f"the body is larger than {LONGEST >> 20} MiB")
        except web.HTTPException as error:
            return _sentence(error.status, f"{request.path}: {error.reason}")
        except CgpuError as error:
            return _sentence(BAD, error)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 (one call must not end the others)
            what = f"internal error: {type(error).__name__}: {error} at {location(error)}"
            self._report("call_failed", {"path": request.path, "error": what})
            return _sentence(BROKEN, what)

    async def _validate(self, request: web.Request) -> web.StreamResponse:
        asked = reviews.read(await request.read())
        pod = None
        if asked.binds(self._settings):
            if not asked.name or not asked.namespace:
                return _sentence(BAD, "a Binding without name or namespace: expected its pod's")
            try:
                pod = await self._api.get(PODS.path(asked.name, namespace=asked.namespace))
            except NotFoundError:
                pass  # the API server says so itself
            except ApiError as error:
                return _sentence(BROKEN, f"whether the pod asks for GPUs is not known: {error}")
        return web.json_response(reviews.validate(asked, self._settings, pod))

    async def _mutate(self, request: web.Request) -> web.StreamResponse:
        asked = reviews.read(await request.read())
        return web.json_response(reviews.mutate(asked, self._settings))

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        return _sentence(200, "ok")


def _sentence(status: int, sentence: object) -> web.Response:
    return web.Response(status=status, text=f"{sentence}\n")
