"""A user's session in the node's account, if root's server runs."""

from __future__ import annotations

import os
import sys

from cgpu_cli.running import options
from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError
from cgpu_env.request import VISIBLE, GpuShare, Request
from cgpu_node import server
from cgpu_node.paths import ROOT_STATE, node_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from cgpu_cli.running.options import Options
    from cgpu_node.facts.node import Node

UNSERVED = (
    f"root's cgpud does not answer, so others' containers, and yours in {ROOT_STATE}, are not"
    " shown; as root, cgpu get starts it"
)


APART = (
    "root's cgpud does not answer, so this session has an account of its own: what others hold and"
    " compute does not count in it; as root, cgpu get starts the server"
)


def is_possible(given: Options) -> bool:
    """Whether the node's server runs, and the user names no other state directory.

    Without namespaces, the proxies and their files must be in a directory of the user's.
    """
    return given.namespaces and is_served(given.state_dir)


def is_served(state_dir: str | None) -> bool:
    """Whether root's server serves a user who names this state directory, or names none."""
    root = node_state(state_dir)
    try:
        return root is not None and server.is_listening(root)
    except OSError:
        return False


def describe_accounts(given: Options, state_dir: str, driver_dir: str) -> tuple[str, ...]:
    """Return notes for a session with a server of its own, whose files are in ``state_dir``.

    They say if root's server does not answer, and who else has promised parts of these GPUs.
    """
    from cgpu_node import accounts

    notes = (APART,) if given.namespaces and node_state(given.state_dir) else ()
    found = accounts.find_other_accounts(state_dir, driver_dir)
    return (*notes, f"{accounts.format_warning(found)}; cgpu-smi shows it") if found else notes


def read_config_notes() -> tuple[str, ...]:
    """Return a note if the configuration is wrong.

    This is no error: cgpud uses the configuration that it read before, or the defaults.
    """
    from cgpu_node.settings import config

    try:
        config.load_config()
    except CgpuError as error:
        return (f"{error}; cgpud goes by what it read before, or by the defaults",)
    return ()


def ask_server(given: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the server whose account has the user's sessions.

    That is root's server, if it runs and the user names no other state directory. Otherwise it is
    the user's own server, which is started if it does not run.

    Raises:
        CgpuError: the server refuses, does not start or does not answer.
    """
    from cgpu_node.client import AbsentError, send_request, start_and_send, with_driver
    from cgpu_node.paths import open_state

    root = node_state(given.state_dir)
    if root is not None:
        real = given.driver_dir and os.path.realpath(given.driver_dir)  # root follows no link here
        try:
            return send_request(root, with_driver(request, real))
        except AbsentError:  # then the user's own server serves
            print(f"cgpu: note: {UNSERVED}", file=sys.stderr)
    return start_and_send(open_state(given.state_dir), given.driver_dir, request)


def ask_admission(given: Options, node: Node) -> tuple[str, Request]:
    """Ask the node's server for a session of this process; it lasts until its last process ends.

    Args:
        given: the command line; its ``gpus`` are UUIDs.
        node: the facts about the node, as this process sees it.

    Returns:
        The session's directory, and its share.

    Raises:
        CgpuError: there is no room, or the server does not answer.
        GpuLostError: the server has other GPUs, so the facts may be old.
    """
    from cgpu_node.client import send_request

    asked = {"variables": options.to_variables(given), "policy": given.policy}
    try:
        answer = send_request(ROOT_STATE, {"request": "admit", "command": given.program, **asked})
    except CgpuError as error:
        if not str(error).startswith(f"{VISIBLE}="):
            raise
        raise GpuLostError(
            f"the node's server does not share the GPUs that {node.driver_dir} has here: {error}",
            hint="with --state-dir DIR the session has an account of its own",
        ) from None
    gpus = _parse_shares(answer)
    notes = tuple(answer.get("notes", ()))  # an older server sends none
    request = Request(gpus, answer["weight"], answer["high_priority"], notes)
    return f"{ROOT_STATE}/containers/{answer['id']}", request


def _parse_shares(answer: dict[str, Any]) -> tuple[GpuShare, ...]:
    """Return the admitted shares. A server of release 0.1 sends no names for them."""
    shares = answer.get("shares")
    if shares is None:
        return tuple(GpuShare(index, uuid, cap) for index, uuid, cap in answer["gpus"])
    return tuple(GpuShare(each["index"], each["uuid"], each["cap_bytes"]) for each in shares)
