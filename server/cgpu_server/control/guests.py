"""Sessions of other users under root's server.

A user's ``cgpu-run`` asks for its share here, so that its memory and time count together with those
of the containers. Its variables are checked by the same rules as a container's.
"""

from __future__ import annotations

import os
from typing import Any

from cgpu_env import CgpuError, parse_request
from cgpu_node.settings import rules
from cgpu_node.shares.record import Owner, SessionUser
from cgpu_server.audit.process_owners import read_process
from cgpu_server.control.connections import Peer
from cgpu_server.state.server_state import ServerState


def admit_guest(state: ServerState, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Give the process that asks a session of its own.

    Returns:
        The session's id, and the fields of its ``Request``.

    Raises:
        CgpuError: the request is malformed, or does not fit.
    """
    variables, command = request.get("variables"), request.get("command")
    policy = request.get("policy")
    if not isinstance(variables, dict) or not isinstance(command, list) or not command:
        raise CgpuError("admit: expected variables and a command")
    if not all(isinstance(text, str) for text in (*variables.values(), *command)):
        raise CgpuError("admit: expected strings in variables and command")
    if policy is not None:
        policy = rules.check_rule("policy", policy)
    process = read_process(peer.pid) if peer.pid > 0 else None
    if process is None:
        raise CgpuError("admit: your process is not seen from here")
    if process.uid != peer.uid:  # the id is another process's now, which would own the session
        raise CgpuError("admit: the process that connected has ended")
    registry, node = state.registry, state.known_node()
    asked = parse_request(variables, [gpu.as_gpu for gpu in node.gpus], has_units=True)
    if asked is None:
        raise CgpuError("admit: the variables ask for nothing")
    name = f"run-{os.urandom(4).hex()}"
    registry.admit(
        name,
        "session",
        asked,
        node,
        Owner(peer.pid, process.start_time, None),
        command,
        policy=policy,
        guest=SessionUser(peer.uid, peer.gid),
    )
    state.refresh()
    return {
        "id": name,
        "shares": [share._asdict() for share in asked.gpus],
        "gpus": asked.gpus,  # as release 0.1 reads them
        "weight": asked.weight,
        "high_priority": asked.high_priority,
        "notes": asked.notes,
    }
