"""A certificate authority of a test, with what it signs: made by openssl."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

_DAYS = "2"


class Authority:
    """Keys and certificates in ``folder``: ``NAME.key``, ``NAME.crt``; its own name is ``ca``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key("ca")
        self._openssl("req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", "-days", _DAYS,
                      "-subj", "/CN=test authority")  # fmt: skip

    @property
    def certificate(self) -> str:
        """Its own certificate, as PEM."""
        return (self.folder / "ca.crt").read_text()

    def key(self, name: str) -> Path:
        """A new private key."""
        self._openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", f"{name}.key")
        return self.folder / f"{name}.key"

    def sign(self, name: str, subject: str, extensions: str = "", days: str = _DAYS) -> None:
        """Make ``NAME.key`` and ``NAME.crt`` for ``subject``, such as ``/O=group/CN=user``."""
        self.key(name)
        self._openssl("req", "-new", "-key", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        (self.folder / f"{name}.ext").write_text(extensions)
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", days,
                      "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                      "-extfile", f"{name}.ext")  # fmt: skip

    def data(self, file: str) -> str:
        """A file in base64, as kubeconfigs have it."""
        return base64.b64encode((self.folder / file).read_bytes()).decode()

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, timeout=60)
