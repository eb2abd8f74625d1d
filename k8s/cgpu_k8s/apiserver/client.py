"""Requests to the API server: each returns one answer or raises one error of ``errors``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from cgpu_env.errors import CgpuError, printable
from cgpu_env.version import VERSION
from cgpu_k8s.apiserver.cluster import Certificate, Cluster
from cgpu_k8s.apiserver.errors import (
    LONGEST_MESSAGE,
    ApiError,
    ConfigurationError,
    NoAnswerError,
    UnreachableError,
    make_api_error,
)

Json = dict[str, Any]
MERGE = "application/merge-patch+json"  # a list in the patch replaces the stored list
STRATEGIC = "application/strategic-merge-patch+json"  # lists are merged by Kubernetes' merge keys
JSON = "application/json"
PAGE = 500  # objects in a page of a list
_DEEPEST = 10_000  # levels; Go's parser refuses more
LONGEST_LINE = 32 << 20  # bytes; objects that the API server stores are much smaller
DEAD = 60.0  # seconds after which keepalive probes have shown that a server is gone
REFUSED = 400
UNAUTHORIZED = 401


class Page(NamedTuple):
    """Some objects of a list, in the API server's order, and the list's ``resourceVersion``."""

    items: list[Json]
    version: str


class ApiRequest(NamedTuple):
    """A request: method, path, query, and a body of the content type ``kind``.

    ``before`` is called once the client is connected and is about to write the body. If it raises a
    CgpuError, the request raises that error. The server gets no body and changes nothing.
    """

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Json | None = None
    kind: str = JSON
    before: Callable[[], None] | None = None

    def __str__(self) -> str:
        """Return method and path, for messages."""
        return f"{self.method} {self.path}"


@asynccontextmanager
async def open_client(cluster: Cluster, *, timeout: float = 10.0) -> AsyncIterator[Client]:
    """Open a client of ``cluster``; its connections close at the end of the block.

    A request without an answer after ``timeout`` seconds raises NoAnswerError.
    """
    async with aiohttp.ClientSession(
        headers={"Accept": JSON, "User-Agent": f"cgpu/{VERSION}"},
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0),  # each watch holds a connection for minutes
    ) as session:
        yield Client(cluster, session, timeout)


class Client:
    """A client of one cluster; see ``open_client``.

    Each method can raise an ApiError, or a ConfigurationError if there is no credential. Paths are
    those of ``Resource.path``.
    """

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, timeout: float) -> None:
        self.cluster = cluster
        self._session = session
        self._patience = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 5.0))
        self._tls: dict[Certificate | None, ssl.SSLContext] = {}

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Return the JSON object at ``path``."""
        return await self._request_json(ApiRequest("GET", path, query))

    async def post(self, path: str, body: Json, before: Callable[[], None] | None = None) -> Json:
        """Create the object ``body``, and return it as stored; ``before``: see ``ApiRequest``."""
        return await self._request_json(ApiRequest("POST", path, body=body, before=before))

    async def put(self, path: str, body: Json) -> Json:
        """Replace the object, and return it as stored.

        Raises ConflictError if the stored ``resourceVersion`` is not the one in ``body``.
        """
        return await self._request_json(ApiRequest("PUT", path, body=body))

    async def patch(
        self,
        path: str,
        body: Json,
        kind: str = STRATEGIC,
        before: Callable[[], None] | None = None,
    ) -> Json:
        """Merge ``body`` into the object by ``kind``, STRATEGIC or MERGE; return it as stored.

        ``before``: see ``ApiRequest``.
        """
        return await self._request_json(ApiRequest("PATCH", path, None, body, kind, before))

    async def delete(self, path: str, body: Json | None = None) -> Json:
        """Delete the object, with DeleteOptions in ``body`` if there are any."""
        return await self._request_json(ApiRequest("DELETE", path, body=body))

    async def list_pages(
        self, path: str, query: Mapping[str, str] | None = None, size: int = PAGE
    ) -> AsyncGenerator[Page, None]:
        """Yield all objects of a list in pages of ``size``, as a consistent snapshot.

        Raises GoneError between two pages if the API server no longer has the snapshot.
        """
        asked = {**(query or {}), "limit": str(size)}
        while True:
            answer = await self._request_json(ApiRequest("GET", path, asked))
            about = answer.get("metadata") or {}
            yield Page(answer.get("items") or [], str(about.get("resourceVersion") or ""))
            if not about.get("continue"):
                return
            asked["continue"] = str(about["continue"])

    async def list(self, path: str, query: Mapping[str, str] | None = None) -> Page:
        """Return all objects of a list at once."""
        items: list[Json] = []
        version = ""
        async for page in self.list_pages(path, query):
            items += page.items
            version = page.version
        return Page(items, version)

    async def stream_lines(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncGenerator[Json, None]:
        """Yield the JSON objects of a streamed answer, one for each line, until the server ends it.

        Raises NoAnswerError after ``silence`` seconds without a byte, DEAD seconds after the
        server's machine is gone, if the connection breaks, and if a line is not a JSON object.
        A line that a broken connection cuts off is dropped.
        """
        patience = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=silence)
        request, rest = ApiRequest("GET", path, query), b""
        async with self._open_response(request, patience) as response:
            _enable_keepalive(response)
            async for chunk in response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield _parse_json(request, line)
                if len(rest) > LONGEST_LINE:
                    raise NoAnswerError(
                        f"the API server answers {request} with a line that does not end"
                    )

    async def _request_json(self, request: ApiRequest) -> Json:
        async with self._open_response(request, self._patience) as response:
            return _parse_json(request, await response.read())

    @asynccontextmanager
    async def _open_response(
        self, request: ApiRequest, patience: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the answer to a request; after a 401, try once more with a new credential."""
        try:
            response = await self._send_request(request, patience)
            if response.status == UNAUTHORIZED and self.cluster.credentials.renew():
                response.release()
                response = await self._send_request(request, patience)
            async with response:
                if response.status >= REFUSED:
                    raise await self._read_error(request, response)
                yield response
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ClientConnectorCertificateError,
            aiohttp.ConnectionTimeoutError,
            UnicodeError,  # a host name that cannot be encoded for DNS
        ) as error:
            cause = getattr(error, "os_error", None) or error
            is_stranger = isinstance(cause, ssl.SSLCertVerificationError)
            right = "certificate-authority" if is_stranger else "address"
            origin = self.cluster.origin
            raise UnreachableError(
                f"the API server {self.cluster.server} ({origin}) cannot be reached:"
                f" {printable(_simplify_reason(str(cause)), LONGEST_MESSAGE)}",
                hint=f"check that it runs, and that its {right} in {origin} is right",
            ) from None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            if isinstance(error.__cause__, CgpuError):
                raise error.__cause__ from None
            why = printable(_simplify_reason(str(error)), LONGEST_MESSAGE) or "it takes too long"
            raise NoAnswerError(f"the answer to {request} does not come: {why}") from None

    async def _send_request(
        self, request: ApiRequest, patience: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        credential = await self.cluster.credentials.get_current()
        if credential.certificate not in self._tls:  # only the newest context is kept
            context = self.cluster.trust.make_context(credential.certificate)
            self._tls = {credential.certificate: context}
        headers = credential.headers
        data: bytes | AsyncIterator[bytes] | None = None
        if not all(map(str.isprintable, headers.values())):
            raise ConfigurationError(
                f"the token of {self.cluster.origin} has a control character: it must be one line"
            )
        if request.body is not None:
            headers = {**headers, "Content-Type": request.kind}
            data = json.dumps(request.body, separators=(",", ":")).encode()
            if request.before:
                headers["Content-Length"] = str(len(data))
                data = _yield_after(request.before, data)
        return await self._session.request(
            request.method,
            URL(self.cluster.server + request.path, encoded=True).update_query(request.query or {}),
            data=data,
            headers=headers,
            timeout=patience,
            ssl=self._tls[credential.certificate],
            server_hostname=self.cluster.trust.name or None,
            proxy=self.cluster.proxy or None,
            allow_redirects=False,
        )

    async def _read_error(self, request: ApiRequest, response: aiohttp.ClientResponse) -> ApiError:
        text = await response.text(errors="replace")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.strip()
        hint = ""
        if response.status == UNAUTHORIZED:
            hint = (
                self.cluster.credentials.find_problem()
                or "the token or certificate may have expired"
            )
            hint = f"check the credentials of {self.cluster.origin}: {hint}"
        return make_api_error(
            str(request), response.status, answer, response.headers.get("Retry-After"), hint
        )


def _simplify_reason(reason: str) -> str:
    """Return the reason for a failed connection without error numbers and OpenSSL's line numbers.

    A reason for which several addresses failed appears once.
    """
    numbers = dict.fromkeys(map(int, re.findall(r"\[Errno (\d+)\]", reason)))
    found = ", ".join(map(os.strerror, numbers)) or re.sub(r"\[Errno -\d+\] ", "", reason)
    return re.sub(r"^\[SSL(: \w+)?\] (.*?)( \(_ssl\.c:\d+\))?$", r"TLS: \2", found)


def _enable_keepalive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel send keepalive probes on an answer's connection.

    A watch can be silent for minutes. Only such probes show that the server is gone.
    """
    transport = response.connection.transport if response.connection else None
    link = transport.get_extra_info("socket") if transport else None
    if link is not None and sys.platform == "linux":  # the only platform where watches run
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def _yield_after(before: Callable[[], None], data: bytes) -> AsyncGenerator[bytes, None]:
    before()
    yield data


def _load_nested(data: bytes) -> object:
    """Parse JSON as deeply nested as the API server stores it, such as parameters of claims.

    Python before 3.12 counts each level as a call, and allows 1,000.
    """
    most = sys.getrecursionlimit()
    sys.setrecursionlimit(most + _DEEPEST)
    try:
        return json.loads(data)
    finally:
        sys.setrecursionlimit(most)


def _parse_json(request: ApiRequest, data: bytes) -> Json:
    try:
        parsed = _load_nested(data)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise NoAnswerError(f"the API server answers {request} with what is not a JSON object")
    return parsed
