"""A cluster: the address of its API server, how to verify that, and credentials for it."""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Protocol

from cgpu_k8s.apiserver.errors import ConfigurationError

JWT_PARTS = 3


class Certificate(NamedTuple):
    """A client's certificate with its chain, and its private key, as PEM."""

    chain: str
    key: str


class Credential(NamedTuple):
    """The credential of one request: HTTP headers, and a client certificate or None."""

    headers: dict[str, str]
    certificate: Certificate | None = None


class Credentials(Protocol):
    """The source of a client's credential, which each request asks anew."""

    async def get_current(self) -> Credential:
        """Return the credential to use now; raise ConfigurationError if there is none."""
        ...

    def renew(self) -> bool:
        """Drop the credential, which was refused; return False if the next one is the same."""
        ...

    def find_problem(self) -> str:
        """Return what is wrong with the credential, such as an expired token, or ""."""
        ...


@dataclass
class Fixed:
    """A credential that never changes."""

    credential: Credential

    async def get_current(self) -> Credential:
        """Return the credential."""
        return self.credential

    def renew(self) -> bool:
        """Return False: there is no other credential."""
        return False

    def find_problem(self) -> str:
        """Return a clause with the time at which the token expired, or ""."""
        return describe_expiry(self.credential)


@dataclass
class TokenFile:
    """A token in a file, which the kubelet or an administrator may replace at any time."""

    path: Path
    last: Credential = field(default_factory=lambda: Credential({}))

    async def get_current(self) -> Credential:
        """Return the token that the file has now. Reading it takes about 20 us."""
        try:
            token = self.path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the token in {self.path} cannot be read: {error}") from None
        if not token:
            raise ConfigurationError(f"the token in {self.path} is empty: it must be one line")
        self.last = make_bearer(token)
        return self.last

    def renew(self) -> bool:
        """Return whether the file has another token now."""
        before = self.last
        try:
            return make_bearer(self.path.read_text(encoding="utf-8").strip()) != before
        except (OSError, ValueError):
            return False

    def find_problem(self) -> str:
        """Return a clause with the time at which the token expired, or ""."""
        return describe_expiry(self.last)


@dataclass(frozen=True)
class Trust:
    """The rules by which the API server's certificate is verified.

    Attributes:
        authorities: the trusted certificate authorities as PEM; "" means the system's.
        insecure: whether every certificate is accepted.
        name: the host name that the certificate must have; "" means the one in the address.
        origin: what messages call the source of these settings.
    """

    authorities: str = ""
    insecure: bool = False
    name: str = ""
    origin: str = ""

    def make_context(self, certificate: Certificate | None) -> ssl.SSLContext:
        """Return the TLS context for requests with ``certificate``; raise ConfigurationError."""
        try:
            context = ssl.create_default_context(cadata=self.authorities or None)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"the certificate authority of {self.origin} is not PEM: {error}"
            ) from None
        # With this flag, the default from Python 3.13 on, Python refuses authorities that kubectl
        # accepts, such as EKS's.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            self._load_certificate(context, certificate)
        return context

    def _load_certificate(self, context: ssl.SSLContext, certificate: Certificate) -> None:
        # The ssl module reads certificates only from files.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 0600
            file.write(f"{certificate.chain}\n{certificate.key}\n")
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except (ssl.SSLError, ValueError) as error:
                raise ConfigurationError(
                    f"the client certificate of {self.origin} and its key do not fit: {error}"
                ) from None


@dataclass(frozen=True)
class Cluster:
    """An API server, and the credentials for it.

    Attributes:
        server: its address, such as ``https://127.0.0.1:6443``, without a slash at the end.
        origin: its name in messages, such as ``context "lab" of /root/.kube/config``.
        trust: how its certificate is verified.
        credentials: the source of the client's credential.
        namespace: the default namespace of commands.
        proxy: the address of an HTTP proxy, or "".
    """

    server: str
    origin: str
    trust: Trust
    credentials: Credentials
    namespace: str = "default"
    proxy: str = ""


def read_file(path: Path) -> str:
    """Return the text of a file, or raise ConfigurationError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{path} cannot be read: {why}") from None


def make_bearer(token: str) -> Credential:
    """Return the credential for a token."""
    return Credential({"Authorization": f"Bearer {token}"})


def describe_expiry(credential: Credential) -> str:
    """Return a clause with the time at which a JWT expired; "" if it is valid or has no expiry."""
    parts = credential.headers.get("Authorization", "").removeprefix("Bearer ").split(".")
    if len(parts) != JWT_PARTS:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        until = datetime.fromtimestamp(float(claims["exp"]), timezone.utc)
    except (binascii.Error, ValueError, TypeError, KeyError, OverflowError, OSError):
        return ""
    if until > datetime.now(timezone.utc):
        return ""
    return f"the token expired at {until:%Y-%m-%d %H:%M:%S} UTC"
