"""How many inputs `make test` tries on each target: some five seconds of one core's time."""

from __future__ import annotations

from pathlib import Path

COUNTS = {
    "document": 100_000,
    "state": 100_000,
    "image": 50_000,
    "ledger": 3_000,
    "config": 30_000,
    "variables": 20_000,
    "text": 30_000,
    "decision": 50_000,
    "record": 30_000,
    "request": 10_000,
    "page": 20_000,
    "cache": 50_000,
    "docker": 20_000,
    "podman-hooks": 20_000,
    "containerd": 3_000,
    "crio": 6_000,
    "podman": 6_000,
    "nvidia": 4_000,
}


def how_to_repeat(name: str, failed: Path) -> str:
    """The command that tries a failed input again."""
    return f"again: .venv/bin/python tests/fuzz {name} {failed}"
