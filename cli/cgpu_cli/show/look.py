"""Reads the node's use for ``cgpu-smi`` and ``cgpu top``, from the server's description.

A user who may read the state directory needs no server: if none runs or answers, the containers'
own files are read.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from cgpu_cli.running.guest import UNSERVED, read_config_notes
from cgpu_env import CgpuError
from cgpu_node import accounts
from cgpu_node.client import AbsentError, send_request, with_driver
from cgpu_node.facts import driver
from cgpu_node.paths import check_state, default_state_dir, node_state, open_state, state_path
from cgpu_node.view.view import Usage, parse_usage


def query_usage(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Return who uses the GPUs, as far as the user may know.

    Args:
        state_dir: the state directory that the user named; None: root's if its server listens, else
            the default one.
        driver_dir: the directory of the driver's libraries that the user named.

    Raises:
        CgpuError: there is no state directory or no driver, root's server refuses, or the server
            shares the GPUs of another driver than ``driver_dir``.
    """
    usage = _query_accounts(state_dir, driver_dir)
    found = accounts.find_other_accounts(
        node_state(state_dir) or state_path(state_dir), usage.driver_dir
    )
    notes = (f"{accounts.format_warning(found)}; {accounts.ADVICE}",) if found else ()
    return usage._replace(notes=(*usage.notes, *notes))


def _query_accounts(state_dir: str | None, driver_dir: str | None) -> Usage:
    root = node_state(state_dir)
    if root is None:
        return _query_own_account(state_dir, driver_dir)
    try:
        usage = _ask_usage(root, driver_dir)
    except AbsentError:
        usage = _query_own_account(state_dir, driver_dir)
        return usage._replace(notes=(UNSERVED, *usage.notes))
    _check_driver(usage, root, driver_dir)
    return usage._replace(notes=(*usage.notes, *_own_account()))


def query_usage_once(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Return who uses the GPUs, and ask the driver about others if the server does not know them.

    While no container is on a GPU, the server does not know who else uses it.
    """
    usage = query_usage(state_dir, driver_dir)
    unknown = {gpu.uuid for gpu in usage.gpus if gpu.foreign_bytes is None and gpu.others is None}
    if not unknown or any(gpu.lost for gpu in usage.gpus):  # such a driver may hang
        return usage
    return usage.with_foreign(_sum_foreign(usage, unknown))


def _sum_foreign(usage: Usage, unknown: Collection[str]) -> dict[str, int]:
    """Return how much of each GPU processes outside containers hold, if it is known."""
    from cgpu_node.facts.discovery import read_holders

    known = {gpu.uuid: gpu.foreign_bytes for gpu in usage.gpus if gpu.foreign_bytes is not None}
    for uuid, held in read_holders(usage.driver_dir).items():
        if uuid in unknown and None not in held.values():
            ours = {each.pid for _, its in usage.uses_on_gpu(uuid) for each in its.processes}
            known[uuid] = sum(used or 0 for pid, used in held.items() if pid not in ours)
    return known


def _query_own_account(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Return the use in the account that the user may read; root reads the node's."""
    state = open_state(state_dir)
    try:
        usage = _ask_usage(state, driver_dir)
    except AbsentError:
        return _read_files(state, driver_dir)
    except CgpuError as error:
        usage = _read_files(state, driver_dir)
        return usage._replace(notes=(*usage.notes, f"without the server: {error}"))
    _check_driver(usage, state, driver_dir)
    return usage


def _ask_usage(state_dir: str, driver_dir: str | None) -> Usage:
    answer = send_request(state_dir, with_driver({"request": "usage"}, driver_dir))
    try:
        usage = parse_usage(answer)
    except (KeyError, TypeError) as error:
        raise CgpuError(f"the cgpud of {state_dir} gave no usable answer: {error!r}") from None
    return usage._replace(notes=(*usage.notes, *read_config_notes()))


def _read_files(state_dir: str, driver_dir: str | None) -> Usage:
    from cgpu_node.view.usage import read_usage

    return read_usage(state_dir, driver_dir)


def _check_driver(usage: Usage, state_dir: str, driver_dir: str | None) -> None:
    """Refuse a server that shares the GPUs of another driver than the user named."""
    if driver_dir and os.path.realpath(driver_dir) != os.path.realpath(usage.driver_dir):
        error = driver.make_other_driver_error(state_dir, usage.driver_dir, driver_dir)
        raise CgpuError(driver.format_refusal(str(error), driver_dir), hint=error.hint)


def _own_account() -> tuple[str, ...]:
    """Return a note on the user's sessions that the node's account lacks, such as older ones."""
    state = default_state_dir()
    if not os.path.isdir(f"{state}/containers"):
        return ()
    from cgpu_node.shares.registry import Registry

    try:
        check_state(state)
        count = len(Registry(state).list_records())
    except (CgpuError, OSError):  # it is another user's
        return ()
    if not count:
        return ()
    return (f"{count} more of yours in the account {state}: cgpu-smi --state-dir {state}",)
