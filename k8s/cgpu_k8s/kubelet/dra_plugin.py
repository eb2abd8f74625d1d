"""The part of a DRA driver that a kubelet calls: it has claims prepared, and unprepared.

A kubelet asks again for what was not prepared, and also, after it has started, for what was. Each
claim has an answer of its own, so that one that is refused holds up no other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from cgpu_env.errors import CgpuError
from cgpu_k8s.kubelet import dra_plugin_api as api
from cgpu_k8s.kubelet.protobuf import EMPTY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from grpclib.server import Stream

    from cgpu_k8s.kubelet.dra_plugin_api import AskedClaim, PreparedDevice

    Report = Callable[[str, dict[str, object]], None]

    class Preparer(Protocol):
        """Prepares claims; both methods may raise CgpuErrors and OSErrors."""

        async def prepare(self, claim: AskedClaim) -> list[PreparedDevice]:
            """Make a claim's devices ready, or return those that are."""

        async def unprepare(self, claim: AskedClaim) -> None:
            """Take a claim's devices back; no error if it has none."""


T = TypeVar("T")


class DraPlugin:
    """The service.

    Args:
        preparer: prepares the claims.
        report: writes a line of the log.
    """

    def __init__(self, preparer: Preparer, report: Report) -> None:
        self._preparer, self._report = preparer, report

    def __mapping__(self) -> dict[str, Handler]:  # gRPC asks for it by this name
        """Return the methods of the service."""
        methods = {
            f"{api.SERVICE}/NodePrepareResources": self._prepare_claims,
            f"{api.SERVICE}/NodeUnprepareResources": self._unprepare_claims,
            f"{api.HEALTH}/NodeWatchResources": _refuse_watch,
        }
        return {
            f"/{name}": Handler(act, Cardinality.UNARY_UNARY, bytes, bytes)
            for name, act in methods.items()
        }

    async def _prepare_claims(self, stream: Stream[bytes, bytes]) -> None:
        answers: dict[str, list[PreparedDevice] | str] = {}
        for claim in await _read_claims(stream):
            found, error = await self._try("prepare", claim, self._preparer.prepare)
            answers[claim.uid] = found if found is not None else error
        await stream.send_message(api.encode_prepared(answers))

    async def _unprepare_claims(self, stream: Stream[bytes, bytes]) -> None:
        answers = {}
        for claim in await _read_claims(stream):
            _, answers[claim.uid] = await self._try("unprepare", claim, self._preparer.unprepare)
        await stream.send_message(api.encode_unprepared(answers))

    async def _try(
        self, what: str, claim: AskedClaim, act: Callable[[AskedClaim], Awaitable[T]]
    ) -> tuple[T | None, str]:
        """Return the result, or None and a sentence."""
        about = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        began = time.monotonic()
        try:
            found = await act(claim)
        except (CgpuError, OSError) as error:
            hint = getattr(error, "hint", "")
            sentence = f"cgpu: {error}" + (f" ({hint})" if hint else "")
            self._report("refused", {**about, "step": what, "error": str(error)})
            return None, sentence
        took = f"{(time.monotonic() - began) * 1000:.1f}"
        self._report(f"{what}d", {**about, "ms": took})
        return found, ""


async def _refuse_watch(stream: Stream[bytes, bytes]) -> None:
    """Refuse in the words of gRPC: without them a kubelet would try again and again."""
    await stream.recv_message()
    raise GRPCError(Status.UNIMPLEMENTED, "the driver does not report the health of devices")


async def _read_claims(stream: Stream[bytes, bytes]) -> list[AskedClaim]:
    try:
        return api.read_claims(await stream.recv_message() or EMPTY)
    except (ValueError, IndexError):
        raise GRPCError(Status.INVALID_ARGUMENT, "the request is no list of claims") from None
