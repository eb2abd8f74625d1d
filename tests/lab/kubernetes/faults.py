"""What may go wrong with a request to the fake API server."""

from __future__ import annotations

import re
from dataclasses import dataclass

NEVER = 3600.0  # seconds; longer than any test


@dataclass
class Fault:
    """What happens to the next ``times`` requests that fit.

    Attributes:
        method, path: patterns that the whole method, and the path with its query, must match.
        times: how many requests.
        status: answer this instead of doing anything, with ``reason``.
        retry_after: the header of that answer, or None.
        delay: seconds before anything is done.
        after: carry the request out, and then answer ``status``, or close the connection.
        half: send the first half of the answer, and close the connection.
        mute: carry the request out, and never answer.
    """

    method: str = ".*"
    path: str = ".*"
    times: int = 1
    status: int = 0
    reason: str = "InternalError"
    retry_after: int | None = None
    delay: float = 0.0
    after: bool = False
    half: bool = False
    mute: bool = False

    def fits(self, method: str, path: str) -> bool:
        """Whether it is for this request."""
        found = re.fullmatch(self.method, method) and re.fullmatch(self.path, path)
        return self.times > 0 and found is not None
