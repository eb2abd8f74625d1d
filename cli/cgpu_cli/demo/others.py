"""Names the other users of the GPU that the demonstration needs for itself."""

from __future__ import annotations

from collections.abc import Iterator

from cgpu_cli.show.table import format_title
from cgpu_env import CgpuError, Gpu
from cgpu_env.errors import printable
from cgpu_env.values import MIB
from cgpu_node.facts.discovery import read_holders
from cgpu_node.shares.registry import Registry
from cgpu_node.view.usage import use_of

_AGAIN = "end them or wait for their end, and run it again; cgpu-smi shows who uses what"


def refuse_shared(state_dir: str, gpu: Gpu) -> None:
    """Refuse a GPU that others have a share of, because the demonstration promises all of it.

    Raises:
        CgpuError: others have a share; they are named, with what they hold.
    """
    found = ", ".join(_list_sharers(state_dir, gpu))
    if found:
        what = f"the demonstration needs all of GPU {gpu.index}, which others share: {found}"
        raise CgpuError(what, hint=_AGAIN)


def describe_holders(driver_dir: str, gpu: Gpu) -> str:
    """Return a sentence on the processes that hold memory of the GPU now; "" if none does."""
    found = ", ".join(_list_holders(driver_dir, gpu))
    return f"Others use GPU {gpu.index} too, which may be why: {found}.\n{_AGAIN}" if found else ""


def _list_sharers(state_dir: str, gpu: Gpu) -> Iterator[str]:
    for entry in Registry(state_dir).list_records():
        use = use_of(entry)
        pid = f", pid {entry.owner.pid}" if entry.owner.pid else ""
        for its in use.gpus:
            if its.uuid == gpu.uuid:
                who = f"{use.kind} {use.id[:12]} ({printable(format_title(use))}{pid})"
                yield f"{who} holds {its.used_bytes // MIB}MiB of its {its.cap_bytes // MIB}MiB"


def _list_holders(driver_dir: str, gpu: Gpu) -> Iterator[str]:
    for pid, held in read_holders(driver_dir).get(gpu.uuid, {}).items():
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                name = printable(file.read().strip())
        except OSError:  # it has ended, or is not seen from here
            continue
        yield f"{name} (pid {pid}) holds {'memory' if held is None else f'{held // MIB}MiB'}"
