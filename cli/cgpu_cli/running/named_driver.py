"""Refuses a driver that a command names if a server shares the GPUs of another driver."""

from __future__ import annotations

import os

from cgpu_node.facts.node import read_facts


def check_conflict(state_dir: str, driver_dir: str | None) -> None:
    """Refuse another driver than the server's, whose facts would replace those in use.

    Args:
        state_dir: the state directory.
        driver_dir: the directory that the command names; None: it names none.

    Raises:
        CgpuError: the server of ``state_dir`` has another driver, or does not answer.
    """
    facts = read_facts(f"{state_dir}/node.json") if driver_dir else None
    if facts is None or facts["identity"]["driver_dir"] == os.path.abspath(driver_dir or ""):
        return
    from contextlib import suppress  # rare, and 2 ms

    from cgpu_node.client import AbsentError, send_request, with_driver

    with suppress(AbsentError):
        send_request(state_dir, with_driver({"request": "ls"}, driver_dir))
