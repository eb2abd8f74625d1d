"""Renews the guard's keys, serves its certificate, and makes API servers trust it.

All replicas share the keys in one Secret. A replica that renews something writes the Secret with
the resourceVersion that it has read. So the first write succeeds, and the other replicas use the
keys that it wrote.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import random
import ssl
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from cgpu_env.errors import CgpuError
from cgpu_k8s.admission.certificates import Keys, Words, compute_words, read_expiry, renew_keys
from cgpu_k8s.apiserver.errors import ConflictError
from cgpu_k8s.apiserver.resources import MUTATING, SECRETS, VALIDATING
from cgpu_k8s.apiserver.watch import Pace
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cgpu_k8s.apiserver.client import Json

    Report = Callable[[str, dict[str, object]], None]

NAME = "cgpu-guard"  # the name of the Secret, the Service and the webhook configurations
# The kinds of configurations, with the last word of the path in each.
CONFIGURATIONS = {MUTATING: "mutate", VALIDATING: "validate"}
# The names in the Secret's data, in the order of ``Keys``.
_FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key", "path")
_PERIOD = 10.0  # seconds between two checks
_TRIES = 6  # attempts within one check, if other replicas write first


class CertificateClient(Protocol):
    """The requests to the API server by which keys are renewed."""

    async def get(self, path: str) -> Json:
        """Return the object at a path; raise an ApiError."""
        ...

    async def put(self, path: str, body: Json) -> Json:
        """Replace an object unless it has changed since it was read; raise an ApiError."""
        ...

    async def patch(self, path: str, body: Json) -> Json:
        """Merge ``body`` into the object at ``path``; raise an ApiError.

        It is a ConflictError if the stored resourceVersion is not the one in ``body``.
        """
        ...


class CertRotator:
    """Checks every 10 s that keys, certificate and configurations are as they must be.

    Args:
        api: a client of the API server with the rights that the chart grants.
        namespace: the Secret's namespace.
        host: the name or address that API servers call.
        report: writes a line of the log.
        clock: returns the time, with a time zone.
        sleep: waits for a number of seconds.

    Attributes:
        tls: the server's TLS context; new connections get the certificate loaded last.
        shown: the keys in use.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (two of them for tests)
        self,
        api: CertificateClient,
        namespace: str,
        host: str,
        report: Report,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api, self._host, self._report, self._clock = api, host, report, clock
        self._sleep, self._pace = sleep, Pace()
        self._secret = SECRETS.path(NAME, namespace=namespace)
        self.shown = Keys()
        self._failed = ""
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    async def wait_for_keys(self) -> None:
        """Reconcile until there is a certificate to serve."""
        while not self.shown.chain:
            if not await self.try_reconcile():
                await self._sleep(1)

    async def run(self) -> None:
        """Reconcile every 10 s until cancelled."""
        while True:
            await self._sleep(_PERIOD)
            await self.try_reconcile()

    async def reconcile(self) -> None:
        """Renew the keys that are due, load the certificate, and update the configurations.

        The configurations are read before the Secret, and written only if nobody has written them
        since. So a replica with older keys cannot overwrite a newer CA bundle: the API server
        refuses its write.

        Raises:
            CgpuError: something could not be read or written.
        """
        paths = [each.path(NAME) for each in CONFIGURATIONS]
        # If one configuration cannot be read or written, the other still is.
        found = await asyncio.gather(*map(self._api.get, paths), return_exceptions=True)
        keys = await self._renew_secret()
        if keys != self.shown:
            _load_certificate(self.tls, keys)
            self.shown = keys
            self._report("shows", {"certificate_until": read_expiry(keys).isoformat()})
        trusting = (
            self._patch_configuration(path, each, keys, verb)
            for path, each, verb in zip(paths, found, CONFIGURATIONS.values(), strict=True)
            if not isinstance(each, BaseException)
        )
        done = await asyncio.gather(*trusting, return_exceptions=True)
        failed = [each for each in (*found, *done) if isinstance(each, BaseException)]
        for error in sorted(failed, key=lambda each: not isinstance(each, ConflictError)):
            raise error

    def compute_words(self) -> Words:
        """Return the words with which the paths of API servers may begin now."""
        return compute_words(self.shown, self._clock())

    async def try_reconcile(self) -> bool:
        """Reconcile, with retries after conflicts; return False on failure."""
        failures = 0
        while True:
            try:
                await self.reconcile()
            except CgpuError as error:
                failures += 1
                if isinstance(error, ConflictError) and failures < _TRIES:
                    await self._sleep(self._pace.compute_pause(failures, random.random()))  # noqa: S311
                    continue
                if str(error) != self._failed:
                    self._report("failed", {"error": str(error)})
                self._failed = str(error)
                return False
            self._failed = ""
            return True

    async def _renew_secret(self) -> Keys:
        """Read the Secret, renew what is due, and return the keys."""
        secret = await self._api.get(self._secret)
        found = _read_keys(secret)
        keys = renew_keys(found, self._host, self._clock())
        if keys != found:
            written = {
                name: base64.b64encode(pem).decode()
                for name, pem in zip(_FIELDS, keys, strict=True)
            }
            await self._api.put(self._secret, {**secret, "data": written})
            self._report("renewed", {"secret": self._secret})
        return keys

    async def _patch_configuration(
        self, path: str, configuration: Json, keys: Keys, verb: str
    ) -> None:
        """Update the CA bundle and the path in one webhook configuration, if they differ."""
        hooks = get_objects(configuration, "webhooks")
        known = compute_words(keys, self._clock())
        called = [
            _diff_client_config(get_member(each, "clientConfig", dict), keys, known, verb)
            for each in hooks
        ]
        if all(before == after for before, after in called):
            return
        version = get_member(get_member(configuration, "metadata", dict), "resourceVersion", str)
        named = [
            {"name": get_member(each, "name", str), "clientConfig": after}
            for each, (_, after) in zip(hooks, called, strict=True)
        ]
        about = {"resourceVersion": version}
        await self._api.patch(path, {"metadata": about, "webhooks": named})
        self._report("trusted", {"configuration": path})


def _read_keys(secret: Json) -> Keys:
    """Return the keys of a Secret; a value that is not base64 counts as absent."""
    data = get_strings(secret, "data")
    return Keys(*(_decode_base64(data.get(name, "")) for name in _FIELDS))


def _diff_client_config(client: Json, keys: Keys, known: Words, verb: str) -> tuple[Json, Json]:
    """Return CA bundle and path of a webhook's clientConfig, as they are and as they must be.

    The word of the next hour stays: a replica whose clock is ahead wrote it.
    """
    service = get_member(client, "service", dict)
    where = get_member(service or client, "path" if service else "url", str)
    given = urlsplit(where).path.removeprefix("/").partition("/")[0]
    word = given if given == known.after else known.now
    due = urlsplit(where)._replace(path=f"/{word}/{verb}").geturl()
    bundle = base64.b64encode(keys.authorities).decode()

    def make_config(trusted: object, at: str) -> Json:
        return {"caBundle": trusted, **({"service": {"path": at}} if service else {"url": at})}

    return make_config(client.get("caBundle"), where), make_config(bundle, due)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _load_certificate(tls: ssl.SSLContext, keys: Keys) -> None:
    """Load the certificate for new connections."""
    # The ssl module reads only files, and a container's file system can be read-only.
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        file.write(keys.chain + keys.key)
        file.flush()
        tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
