"""Credentials from a program that a kubeconfig names: Kubernetes' exec plug-ins."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeGuard

from cgpu_env.errors import printable
from cgpu_k8s.apiserver.cluster import Certificate, Credential, make_bearer
from cgpu_k8s.apiserver.errors import LONGEST_MESSAGE, ConfigurationError

GROUP = "client.authentication.k8s.io/"
EARLY = timedelta(seconds=10)  # how long before its expiry a credential is replaced
PATIENCE = 60.0  # seconds that the program may take


@dataclass
class ExecPlugin:
    """A program that prints a credential, which is kept until it expires or is refused.

    Attributes:
        command: the program and its arguments.
        environment: variables that the program gets besides those of this process.
        information: the ``ExecCredential`` that the program gets.
        origin: what messages call the kubeconfig's user entry.
        hint: how to install the program, from the kubeconfig.
    """

    command: list[str]
    environment: dict[str, str]
    information: dict[str, Any]
    origin: str
    hint: str = ""
    _credential: Credential | None = None
    _expires: datetime | None = None
    _running: asyncio.Future[Credential] | None = None

    @classmethod
    def from_fields(
        cls,
        fields: object,
        home: Path,
        origin: str,
        cluster: Mapping[str, Any],
        authority: str,
    ) -> ExecPlugin:
        """Return the plug-in that the ``exec`` of a kubeconfig's user describes.

        Args:
            fields: the content of ``exec``.
            home: the kubeconfig; the program's path may be relative to its directory.
            origin: what messages call the user entry.
            cluster: the cluster's entry, for a plug-in that asks for it.
            authority: the cluster's certificate authority as PEM, or "".

        Raises:
            ConfigurationError: ``fields`` is invalid, or needs a user who answers questions.
        """
        if not isinstance(fields, dict) or not fields.get("command"):
            raise ConfigurationError(f"{origin} has an exec plug-in without a command")
        version = str(fields.get("apiVersion") or "")
        if not version.startswith(GROUP):
            raise ConfigurationError(
                f"{origin} has an exec plug-in of apiVersion {printable(version)!r}: it must be"
                f" {GROUP}v1 or {GROUP}v1beta1"
            )
        if fields.get("interactiveMode") == "Always":
            raise ConfigurationError(
                f"{origin} has an exec plug-in that asks questions (interactiveMode: Always):"
                " cgpu cannot answer them"
            )
        program = str(fields["command"])
        if "/" in program:  # otherwise it is looked up in PATH
            program = str(home.parent / program)
        spec: dict[str, Any] = {"interactive": False}
        if fields.get("provideClusterInfo") is True:
            spec["cluster"] = _make_cluster_info(cluster, authority)
        words, added = fields.get("args") or [], fields.get("env") or []
        if not isinstance(words, list) or not _are_mappings(added):
            raise ConfigurationError(
                f"{origin} has an exec plug-in whose args are no list of words, or whose env is no"
                " list of names with values"
            )
        return cls(
            command=[program, *map(str, words)],
            environment={str(each.get("name")): str(each.get("value")) for each in added},
            information={"apiVersion": version, "kind": "ExecCredential", "spec": spec},
            origin=origin,
            hint=" ".join(str(fields.get("installHint") or "").split()),
        )

    async def get_current(self) -> Credential:
        """Return the credential; run the program if it has expired. Raises ConfigurationError."""
        if self._credential is not None and not self._is_expired(EARLY):
            return self._credential
        if self._running is None or self._running.done():  # concurrent requests share one run
            self._running = asyncio.ensure_future(self._refresh_credential())
        return await asyncio.shield(self._running)

    async def _refresh_credential(self) -> Credential:
        # In a thread: a cancelled task could no longer wait for an asyncio subprocess to end.
        self._credential, self._expires = self._parse_output(
            await asyncio.to_thread(self._run_program)
        )
        return self._credential

    def renew(self) -> bool:
        """Drop the credential; return True, since the program may print another one."""
        self._credential = None
        return True

    def find_problem(self) -> str:
        """Return a clause that says that the program's credential has expired or is refused."""
        what = "is refused"
        if self._expires is not None and self._is_expired():
            what = f"expired at {self._expires:%Y-%m-%d %H:%M:%S} UTC, by this machine's clock"
        return f"the exec plug-in {self.command[0]} gives a credential that {what}"

    def _is_expired(self, early: timedelta = timedelta()) -> bool:
        return self._expires is not None and datetime.now(timezone.utc) >= self._expires - early

    def _run_program(self) -> bytes:
        environment = {**os.environ, **self.environment}
        environment["KUBERNETES_EXEC_INFO"] = json.dumps(self.information)
        try:
            done = subprocess.run(
                self.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, ValueError) as error:
            raise self._make_error(
                f"cannot be started: {getattr(error, 'strerror', error)}"
            ) from None
        except subprocess.TimeoutExpired:
            raise self._make_error(f"does not end within {PATIENCE:.0f} s") from None
        if done.returncode:
            last = printable(
                " ".join(done.stderr.decode(errors="replace").split()), LONGEST_MESSAGE
            )
            raise self._make_error(
                f"fails with status {done.returncode}: {last or 'it does not say why'}"
            )
        return done.stdout

    def _parse_output(self, output: bytes) -> tuple[Credential, datetime | None]:
        try:
            answer = json.loads(output)
            status = answer["status"]
            kind, version = answer["kind"], answer["apiVersion"]
            until = status.get("expirationTimestamp")
            expires = None if until is None else _parse_time(str(until))
            token = status.get("token") or ""
            chain, key = status.get("clientCertificateData"), status.get("clientKeyData")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._make_error("prints what is not an ExecCredential with a status") from None
        if kind != "ExecCredential" or version != self.information["apiVersion"]:
            raise self._make_error(
                f"prints {printable(str(kind))} of {printable(str(version))}: it must be"
                f" ExecCredential of {self.information['apiVersion']}"
            )
        if not token and not (chain and key):
            raise self._make_error("prints neither a token nor a certificate with its key")
        # An expired credential is sent too: this machine's clock may be wrong.
        credential = make_bearer(str(token)) if token else Credential({})
        if chain and key:
            credential = credential._replace(certificate=Certificate(str(chain), str(key)))
        return credential, expires

    def _make_error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(
            f"the exec plug-in {self.command[0]} of {self.origin} {problem}", hint=self.hint
        )


def _parse_time(text: str) -> datetime:
    """Parse a time as in RFC 3339. Python 3.10 does not parse the suffix Z."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _are_mappings(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _make_cluster_info(cluster: Mapping[str, Any], authority: str) -> dict[str, Any]:
    """Return the ``spec.cluster`` of an ``ExecCredential``, with the authority as data."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    known = {name: cluster[name] for name in names if name in cluster}
    if authority:
        known["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    listed = cluster.get("extensions")
    extensions = {
        str(each.get("name")): each.get("extension")
        for each in (listed if _are_mappings(listed) else [])
    }
    config = extensions.get("client.authentication.k8s.io/exec")
    return {**known, "config": config} if config is not None else known
