"""The GPUs that a container sees, given by index, UUID, beginning of a UUID, or ``all``."""

from __future__ import annotations

from cgpu_env.errors import EnvError, env_error
from cgpu_env.record import NamedTuple
from cgpu_env.values import parse_integer, split_items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VENDOR = "GPU-"
MAX_INDEX = 9999
_ALLOWED = "expected all, or a comma list of GPU indices or UUIDs such as 0,1"


class GpuLostError(EnvError):
    """A container should get a GPU that does not answer."""


class Gpu(NamedTuple):
    """A GPU of the node.

    Attributes:
        index: its index on this node.
        uuid: its UUID; empty if it is not known.
        total_bytes: its memory as the driver reports it.
        lost: why it does not answer, and what to do; empty: it answers.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    total_bytes: int
    lost: str = ""


def check_devices(variable: str, value: str) -> list[str]:
    """Return the items of a list of devices, or ``["all"]``; refuse what no node can ever have."""
    names = split_items(value)
    if names == ["all"]:
        return names
    for name in names:
        if not name or name == "all" or not (name.isascii() and name.replace("-", "").isalnum()):
            raise env_error(variable, value, _ALLOWED)
        if name.isdecimal() and parse_integer(name, MAX_INDEX) is None:
            raise env_error(variable, value, f"{_ALLOWED}; {name[:20]} is not an index")
    return names


def select_gpus(variable: str, value: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that ``value`` names, in its order, each at most once."""
    names = check_devices(variable, value)
    if not gpus:
        raise env_error(variable, value, "this node has no GPU")
    if names == ["all"]:
        return select_answering(gpus)
    chosen: list[Gpu] = []
    for name in names:
        gpu = _find_gpu(variable, value, name, gpus)
        if gpu in chosen:
            raise env_error(variable, value, f"{name} names GPU {gpu.index} a second time")
        chosen.append(gpu)
    return chosen


def select_answering(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that answer.

    Raises:
        GpuLostError: there are GPUs, but none answers.
    """
    found = [gpu for gpu in gpus if not gpu.lost]
    if gpus and not found:
        raise GpuLostError(f"no GPU of this node can be used: {format_lost_gpu(gpus[0])}")
    return found


def format_lost_gpu(gpu: Gpu) -> str:
    """Return the sentence for a GPU that does not answer."""
    uuid = f" ({gpu.uuid})" if gpu.uuid else ""
    return f"GPU {gpu.index}{uuid} does not answer: {gpu.lost}"


def _find_gpu(variable: str, value: str, name: str, gpus: Sequence[Gpu]) -> Gpu:
    index = parse_integer(name, MAX_INDEX)
    if index is not None:
        found = [gpu for gpu in gpus if gpu.index == index]
    else:
        found = [gpu for gpu in gpus if _is_prefix(name, gpu.uuid)]
    if len(found) == 1:
        if found[0].lost:
            raise GpuLostError(str(env_error(variable, value, format_lost_gpu(found[0]))))
        return found[0]
    if found:
        indices = ", ".join(str(gpu.index) for gpu in found)
        what = f"{name} is the start of more than one UUID (GPUs {indices}): write more"
        raise env_error(variable, value, what)
    raise _make_unknown_error(variable, value, name, gpus)


def _is_prefix(name: str, uuid: str) -> bool:
    wanted, whole = name.lower(), uuid.lower()
    return whole.startswith(wanted) or whole.removeprefix(VENDOR.lower()).startswith(wanted)


def _make_unknown_error(variable: str, value: str, name: str, gpus: Sequence[Gpu]) -> EnvError:
    unnamed = [format_lost_gpu(gpu) for gpu in gpus if gpu.lost and not gpu.uuid]
    there = "; ".join([format_gpus(gpu.index for gpu in gpus), *unnamed])
    error = env_error(variable, value, f"no GPU {name[:60]} here; {there}")
    return GpuLostError(str(error)) if unnamed else error


def format_gpus(indices: Iterable[int]) -> str:
    """Return a clause that lists the node's GPUs, for a refusal."""
    known = [str(index) for index in indices]
    if not known:
        return "this node has no GPU"
    return f"this node has {'GPU' if len(known) == 1 else 'GPUs'} {', '.join(known)}"
