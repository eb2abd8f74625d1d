"""What a container asks of cgpu, read from its own environment.

Bad input is refused, wherever it stands: also where ``ALIYUN_COM_GPU_MEM_CONTAINER`` switches cgpu
off, the other ``ALIYUN_COM_GPU_*`` values have to be well formed. Only ``CGPU_DISABLE=true`` makes
cgpu blind, and ``NVIDIA_VISIBLE_DEVICES``, which belongs to others, is read only where cgpu is on.
Only ``ALIYUN_COM_GPU_MEM_CONTAINER`` and ``NVIDIA_VISIBLE_DEVICES`` may be set to nothing.
"""

from __future__ import annotations

from cgpu_env.devices import Gpu, check, select
from cgpu_env.errors import EnvError, refused
from cgpu_env.record import NamedTuple
from cgpu_env.values import BLANKS, gib_list, number_in, truth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PREFIX = "ALIYUN_COM_GPU_"
DISABLE = "CGPU_DISABLE"
MEM_DEV = "ALIYUN_COM_GPU_MEM_DEV"
MEM_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
VISIBLE = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
HIGH_PRIO = "ALIYUN_COM_GPU_HIGH_PRIO"
NVIDIA_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_GPU = ("", "none", "void")
DEFAULT_MAX_INST = 20


class GpuShare(NamedTuple):
    """A GPU that a container sees; ``memory_bytes`` is the container's cap on it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    memory_bytes: int


class Request(NamedTuple):
    """What a container asks for; ``gpus`` in the order of its visible list."""

    gpus: tuple[GpuShare, ...]
    weight: int
    high_priority: bool


def environment(entries: Iterable[str]) -> dict[str, str]:
    """The variables of a list of ``NAME=value``; of duplicates the last wins, as in runc and crun.

    Raises:
        EnvError: an entry is not a string.
    """
    env = {}
    for entry in entries:
        if not isinstance(entry, str):
            raise EnvError("process.env of the container: expected a list of NAME=value strings")
        name, _, value = entry.partition("=")
        env[name] = value
    return env


class _Asked(NamedTuple):
    """A request as far as it can be read without knowing the node's GPUs."""

    share: list[int]  # empty: the node's default size
    dev: list[int] | None
    weight: int
    high_priority: bool


def is_asked(
    env: Mapping[str, str], *, max_inst: int = DEFAULT_MAX_INST, default_memsize: int = 0
) -> bool:
    """Whether cgpu is on for a container, as far as that shows without the node's GPUs.

    Raises:
        EnvError: as ``parse_request``.
    """
    return _asked(env, max_inst, default_memsize) is not None


def parse_request(
    env: Mapping[str, str],
    gpus: Sequence[Gpu],
    *,
    max_inst: int = DEFAULT_MAX_INST,
    default_memsize: int = 0,
) -> Request | None:
    """Read a container's request.

    Args:
        env: the container's own environment.
        gpus: the GPUs of the node, in the order of their indices.
        max_inst: how many containers share a GPU, and the sum of their weights.
        default_memsize: cap in bytes on each GPU of a container that names none; 0: no cap.

    Returns:
        The request, or None where cgpu is off for this container.

    Raises:
        EnvError: one sentence that names the variable, the value given, and what is allowed.
    """
    asked = _asked(env, max_inst, default_memsize)
    if asked is None:
        return None
    if asked.share and not gpus:
        raise refused(MEM_CONTAINER, env[MEM_CONTAINER], "this node has no GPU")
    visible = _visible(env, gpus)
    if not visible:
        return None
    if asked.share:
        caps = _caps(env, visible, asked)
    else:
        caps = [min(default_memsize, gpu.memory_bytes) for gpu in visible]
    shares = (GpuShare(gpu.index, gpu.uuid, cap) for gpu, cap in zip(visible, caps, strict=True))
    return Request(tuple(shares), asked.weight, asked.high_priority)


def _asked(env: Mapping[str, str], max_inst: int, default_memsize: int) -> _Asked | None:
    if truth(DISABLE, env.get(DISABLE, "false")):
        return None
    dev = gib_list(MEM_DEV, env[MEM_DEV], 1) if MEM_DEV in env else None
    weight = number_in(WEIGHT, env.get(WEIGHT, "1"), 1, max_inst)
    high_priority = bool(number_in(HIGH_PRIO, env.get(HIGH_PRIO, "0"), 0, 1))
    if VISIBLE in env:
        check(VISIBLE, env[VISIBLE])
    written = env.get(MEM_CONTAINER, "").strip(BLANKS)
    share = gib_list(MEM_CONTAINER, written, 0) if written else []
    if 0 in share or (not share and default_memsize <= 0):
        return None
    return _Asked(share, dev, weight, high_priority)


def _visible(env: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu]:
    if VISIBLE in env:
        return select(VISIBLE, env[VISIBLE], gpus)
    nvidia = env.get(NVIDIA_VISIBLE)
    if nvidia is None:
        return list(gpus)
    if nvidia.strip(BLANKS) in NO_GPU:
        return []
    return select(NVIDIA_VISIBLE, nvidia, gpus)


def _caps(env: Mapping[str, str], visible: Sequence[Gpu], asked: _Asked) -> list[int]:
    """The caps in bytes, ``floor(total * CONTAINER / DEV)`` for each GPU."""
    if asked.dev is None:
        given = f"{MEM_CONTAINER}={env[MEM_CONTAINER]}"
        raise refused(MEM_DEV, None, f"{given} needs it, the whole GiB of each GPU such as 15")
    shares = _per_gpu(MEM_CONTAINER, env, asked.share, len(visible))
    devs = _per_gpu(MEM_DEV, env, asked.dev, len(visible))
    for part, whole in zip(shares, devs, strict=True):
        if part > whole:
            allowed = f"{part} GiB is more than the {whole} GiB of {MEM_DEV}"
            raise refused(MEM_CONTAINER, env[MEM_CONTAINER], allowed)
    return [g.memory_bytes * c // d for g, c, d in zip(visible, shares, devs, strict=True)]


def _per_gpu(variable: str, env: Mapping[str, str], given: list[int], count: int) -> list[int]:
    """One value for each of ``count`` GPUs; the last one given repeats."""
    if len(given) > count:
        visible = "1 GPU is" if count == 1 else f"{count} GPUs are"
        raise refused(variable, env[variable], f"{len(given)} values, but {visible} visible")
    return given + given[-1:] * (count - len(given))
