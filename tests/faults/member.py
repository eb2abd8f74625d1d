"""What lives on the node while faults happen."""

from __future__ import annotations

GIB = 1 << 30
CAP_GIB = 3


class Member:
    """A container or session that is to live.

    Attributes:
        name: what the simulated GPU knows it by; the id, of a container.
        id: in the state directory.
        gpu: the index of its GPU.
        runtime: the low-level runtime; ``root`` or ``user`` of a session.
        allowance: the bytes that it may hold at most; None while that changes, and of a container
            whose ledger is ruined.
    """

    def __init__(self, name: str, gpu: int, runtime: str) -> None:
        self.name = self.id = name
        self.gpu, self.runtime = gpu, runtime
        self.allowance: int | None = CAP_GIB * GIB

    @property
    def is_session(self) -> bool:
        """Whether it was made by cgpu-run."""
        return self.runtime in ("root", "user")

    def __str__(self) -> str:
        return f"{self.name} ({self.runtime}, GPU {self.gpu})"
