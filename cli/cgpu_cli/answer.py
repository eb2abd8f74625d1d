"""Prints ``--json``: the version of the format, the time, and the fields of an answer.

docs/json.md describes the fields; a test compares it with what the programs print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

VERSION = 1  # of all of them; incremented when a key is removed or changes its meaning


def print_json(fields: Mapping[str, Any], *, is_one_line: bool = False) -> None:
    """Print an answer for programs."""
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    head = {"version": VERSION, "time": f"{now.isoformat(timespec='milliseconds')}Z"}
    print(json.dumps({**head, **fields}, indent=None if is_one_line else 2), flush=True)
