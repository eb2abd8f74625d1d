"""Reads clusters and users from kubeconfigs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from cgpu_env.errors import find_nearest, printable
from cgpu_k8s.apiserver.cluster import (
    Certificate,
    Cluster,
    Credential,
    Credentials,
    Fixed,
    TokenFile,
    Trust,
    make_bearer,
    read_file,
)
from cgpu_k8s.apiserver.credential_plugin import ExecPlugin
from cgpu_k8s.apiserver.errors import ConfigurationError

Fields = Mapping[str, Any]


class Kubeconfig:
    """One kubeconfig, or several merged: of entries with the same name, the first counts.

    Raises ConfigurationError, here and in ``read_cluster``.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.origin = ":".join(map(str, paths))
        self._current = ""
        self._named: dict[str, dict[str, tuple[Fields, Path]]] = {
            "clusters": {},
            "contexts": {},
            "users": {},
        }
        for path in paths:
            self._add_file(path)

    @property
    def contexts(self) -> list[str]:
        """Return the names of all contexts."""
        return list(self._named["contexts"])

    def read_cluster(self, context: str | None = None) -> Cluster:
        """Return the cluster and user of ``context``, or of the current one."""
        name = context or self._current
        if not name:
            raise ConfigurationError(
                f"{self.origin} has no current-context: name one of its contexts with --context",
                hint=f"it has {', '.join(self.contexts) or 'none'}",
            )
        chosen, _ = self._get_entry("contexts", name, f"{self.origin}")
        origin = f'context "{name}" of {self.origin}'
        about, place = self._get_entry("clusters", str(chosen.get("cluster") or ""), origin)
        server = _read_address(about, "server", origin, "https://HOST:6443")
        proxy = about.get("proxy-url") and _read_address(
            about, "proxy-url", origin, "http://HOST:3128"
        )
        trust = Trust(
            authorities=_read_pem(about, "certificate-authority", place, origin),
            insecure=about.get("insecure-skip-tls-verify") is True,
            name=str(about.get("tls-server-name") or ""),
            origin=origin,
        )
        user: tuple[Fields, Path] = ({}, place)
        if chosen.get("user"):
            user = self._get_entry("users", str(chosen["user"]), origin)
        return Cluster(
            server=server,
            origin=origin,
            trust=trust,
            credentials=_read_credentials(*user, origin, about, trust.authorities),
            namespace=str(chosen.get("namespace") or "default"),
            proxy=proxy or "",
        )

    def _add_file(self, path: Path) -> None:
        try:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            content = yaml.load(read_file(path), Loader=loader)  # noqa: S506
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark is not None else ""
            raise ConfigurationError(f"{path} is not YAML{line}: it must be a kubeconfig") from None
        content = {} if content is None else content
        if not isinstance(content, dict):
            raise ConfigurationError(f"{path} is not a kubeconfig: it must be a mapping")
        self._current = self._current or str(content.get("current-context") or "")
        for kind, known in self._named.items():
            listed = content.get(kind) or []
            for each in listed if isinstance(listed, list) else [None]:
                if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                    raise ConfigurationError(
                        f"{path} is not a kubeconfig: {kind} must be a list of entries with names"
                    )
                fields = each.get(kind[:-1])
                known.setdefault(each["name"], (fields if isinstance(fields, dict) else {}, path))

    def _get_entry(self, kind: str, name: str, origin: str) -> tuple[Fields, Path]:
        known = self._named[kind]
        if name not in known:
            like = find_nearest(name, known)
            raise ConfigurationError(
                f'{origin} has no {kind[:-1]} "{printable(name)}": it has'
                f" {', '.join(sorted(known)) or 'none'}",
                hint=f'did you mean "{like}"?' if like else "",
            )
        return known[name]


def _read_address(fields: Fields, key: str, origin: str, example: str) -> str:
    """Return the HTTP address in a cluster's entry, without a slash at the end."""
    address = str(fields.get(key) or "").rstrip("/")
    try:
        parts = urlsplit(address)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        # Only a proxy's address may have a user name: the user entry has that of the API server.
        known = parts.username is None or key == "proxy-url"
        if fits and known and address.isprintable() and " " not in address:
            return address
    except ValueError:  # an invalid port or IPv6 address
        pass
    raise ConfigurationError(
        f"{origin} has {key}={printable(address)}: it must be an address such as {example}"
    )


def _read_pem(fields: Fields, key: str, home: Path, origin: str) -> str:
    """Return the PEM of ``KEY-data`` (base64) or of the file ``KEY``; "" if there is neither."""
    data = fields.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True).decode()
        except (binascii.Error, ValueError):
            raise ConfigurationError(f"{key}-data of {origin} is not base64 of PEM") from None
    path = fields.get(key)
    return read_file(home.parent / str(path)) if path else ""


def _read_credentials(
    user: Fields, home: Path, origin: str, cluster: Fields, authority: str
) -> Credentials:
    """Return the credentials of a user's entry: certificate, token, file, password or plug-in."""
    if user.get("auth-provider"):
        raise ConfigurationError(
            f"{origin} uses an auth-provider, which Kubernetes removed in 1.26: use a token, a"
            " client certificate or an exec plug-in"
        )
    if any(str(each).startswith("as") for each in user):
        raise ConfigurationError(f"{origin} impersonates another user, which cgpu does not do")
    chain = _read_pem(user, "client-certificate", home, origin)
    key = _read_pem(user, "client-key", home, origin)
    if bool(chain) != bool(key):
        raise ConfigurationError(
            f"{origin} has a client certificate without its key, or a key without its certificate"
        )
    certificate = Certificate(chain, key) if chain else None
    if user.get("exec"):
        return ExecPlugin.from_fields(user["exec"], home, origin, cluster, authority)
    if user.get("tokenFile") and not user.get("token"):
        return TokenFile(home.parent / str(user["tokenFile"]))
    credential = Credential({}, certificate)
    if user.get("token"):
        credential = make_bearer(str(user["token"]))._replace(certificate=certificate)
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password') or ''}"
        basic = base64.b64encode(pair.encode()).decode()
        credential = Credential({"Authorization": f"Basic {basic}"}, certificate)
    return Fixed(credential)
