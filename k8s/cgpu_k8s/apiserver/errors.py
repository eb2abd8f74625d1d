"""The errors of requests to the API server."""

from __future__ import annotations

from cgpu_env.errors import CgpuError, printable

LONGEST_MESSAGE = 600  # characters


class ConfigurationError(CgpuError):
    """The configuration lacks an API server or credentials for it, or is invalid."""


class ApiError(CgpuError):
    """A request that the API server refused, or whose answer did not come.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        reason: the ``reason`` of Kubernetes' Status, such as ``AlreadyExists``, or "".
        sure: whether the request certainly changed nothing. If not, a write may have been carried
            out: read the object before you act on the error.
        retry_after: how many seconds the API server asks the client to wait, or None.
    """

    sure = True

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class UnauthorizedError(ApiError):
    """401: the API server does not know the user."""


class ForbiddenError(ApiError):
    """403: RBAC or admission refuses the request."""


class NotFoundError(ApiError):
    """404: there is no such object, or no such kind."""


class ConflictError(ApiError):
    """409: the object already exists, or has changed since it was read."""


class GoneError(ApiError):
    """410: the resourceVersion or list to continue from is too old; list again."""


class InvalidError(ApiError):
    """422: the object is invalid."""


class TooManyRequestsError(ApiError):
    """429: the API server wants fewer requests; see ``retry_after``."""


class ServerError(ApiError):
    """5xx: the API server failed, before or after it carried out the request."""

    sure = False


class UnreachableError(ApiError):
    """No connection could be made, so nothing was sent."""


class NoAnswerError(ApiError):
    """The request was sent, but no complete answer came: a time-out or a broken connection."""

    sure = False


BY_STATUS: dict[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def make_api_error(
    request: str, status: int, answer: object, retry_after: str | None = None, hint: str = ""
) -> ApiError:
    """Return the error for an HTTP ``status`` of 400 or more.

    Args:
        request: the request, such as ``GET /api/v1/nodes``.
        status: the HTTP status.
        answer: the parsed body: a Status object, or anything else.
        retry_after: the header ``Retry-After``, in seconds.
        hint: what the user can do.
    """
    kind = BY_STATUS.get(status, ServerError if status >= 500 else ApiError)  # noqa: PLR2004
    fields = answer if isinstance(answer, dict) else {"message": answer}
    message = printable(str(fields.get("message") or f"status {status}"), LONGEST_MESSAGE)
    return kind(
        f"the API server answers {request} with {status}: {message}",
        status=status,
        reason=str(fields.get("reason") or ""),
        retry_after=_parse_seconds(retry_after),
        hint=hint,
    )


def _parse_seconds(header: str | None) -> float | None:
    """Return ``Retry-After`` in seconds; an API server never sends the form with a date."""
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None
