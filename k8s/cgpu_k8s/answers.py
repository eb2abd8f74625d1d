"""Responses of the guard and the extender to errors, of one sentence each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from cgpu_env.errors import CgpuError
from cgpu_env.logline import locate_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp.typedefs import Handler, Middleware

BAD, BROKEN = 400, 500


def make_response(status: int, sentence: object) -> web.Response:
    """Return a response of one sentence."""
    return web.Response(status=status, text=f"{sentence}\n")


def make_middleware(
    report: Callable[[str, dict[str, object]], None],
    too_long: object,
    statuses: Mapping[type[CgpuError], int] | None = None,
) -> Middleware:
    """Return the middleware that turns errors into responses of one sentence.

    Args:
        report: writes a line of the log.
        too_long: the sentence for a body that is too large.
        statuses: the HTTP status for classes of CgpuError; others get BAD.
    """

    @web.middleware
    async def answer_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return make_response(BAD, too_long)
        except web.HTTPException as error:
            return make_response(error.status, f"{request.path}: {error.reason}")
        except CgpuError as error:
            return make_response((statuses or {}).get(type(error), BAD), error)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 (one call must not end the others)
            what = f"internal error: {type(error).__name__}: {error} at {locate_error(error)}"
            # Log the route's pattern, because a part of the path may be secret.
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else request.path
            report("call_failed", {"path": path, "error": what})
            return make_response(BROKEN, what)

    return answer_request
