"""A line for each step of the demonstration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    print(f"{text} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{text}: {time.monotonic() - began:.0f} s", flush=True)
