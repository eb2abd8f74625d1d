"""The request of a container, read from its own environment.

Invalid input is always refused. Even if ``ALIYUN_COM_GPU_MEM_CONTAINER`` switches cgpu off, the
other ``ALIYUN_COM_GPU_*`` values must be well formed. Only ``CGPU_DISABLE=true`` makes cgpu ignore
them all. ``NVIDIA_VISIBLE_DEVICES``, which belongs to other software, is read only if cgpu is on.
Only ``ALIYUN_COM_GPU_MEM_CONTAINER`` and ``NVIDIA_VISIBLE_DEVICES`` may be empty.

An unknown name is refused too, because it may be a misspelt one of ours: a name
``ALIYUN_COM_GPU_*`` always, a name ``CGPU_*`` if the container gets a share. Without a size, cgpu
is off whatever else is set, because users of other implementations expect that. ``without_size`` is
the warning for this case.
"""

from __future__ import annotations

from cgpu_env.devices import Gpu, check_devices, select_answering, select_gpus
from cgpu_env.errors import EnvError, env_error, find_nearest, printable
from cgpu_env.record import NamedTuple
from cgpu_env.values import (
    BLANKS,
    LARGEST_BYTES,
    Size,
    compute_cap,
    format_misstated,
    format_misstated_default,
    parse_gib_list,
    parse_number,
    parse_size,
    parse_truth,
    split_items,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    Given = TypeVar("Given")

PREFIX = "ALIYUN_COM_GPU_"
DISABLE = "CGPU_DISABLE"
# Prefixes of names for our own programs and proxies, and (the longer one) for the simulated driver.
_OWN_PREFIX, _SIMULATED = "CGPU_", "CGPU_SIM_"
_POLICY = "POLICY"
_OWN = frozenset((DISABLE, "CGPU_LOG", "CGPU_STATE_DIR", "CGPU_DRIVER_DIR"))
MEM_DEV = "ALIYUN_COM_GPU_MEM_DEV"
MEM_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
VISIBLE = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
HIGH_PRIO = "ALIYUN_COM_GPU_HIGH_PRIO"
NVIDIA_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_GPU = ("", "none", "void")
MEM_UNIT = "ALIYUN_COM_GPU_MEM_UNIT"  # the unit of DEV by device plugins; a share is a ratio
DEFAULT_MAX_INST, MOST_INST = 20, 25
# Each GPU has a max_inst of its own, which can be changed, so admission checks weights against it.
_MOST_WEIGHT = f"the GPU's max_inst, which is {DEFAULT_MAX_INST} by default and at most {MOST_INST}"
_OURS = frozenset((MEM_DEV, MEM_CONTAINER, VISIBLE, WEIGHT, HIGH_PRIO))
_OF_A_SHARE = (MEM_DEV, WEIGHT, HIGH_PRIO)  # they count only together with MEM_CONTAINER
MEANT = f"nothing if this is meant; otherwise set {MEM_CONTAINER} to the GiB wanted of each GPU"
# Variables that published schedulers and device plugins set for their own use.
PASSED_OVER = frozenset(
    PREFIX + name
    for name in (
        "ASSIGNED",
        "ASSUME_TIME",
        "COUNT",
        "COUNT_POD",
        "GROUP",
        "IDX",
        "MEM_ASSIGNED",
        "MEM_ASSUME_TIME",
        "MEM_IDX",
        "MEM_POD",
        "MEM_UNIT",
        "POD",
        "SPECIAL_IDX",
    )
)


class GpuShare(NamedTuple):
    """A GPU that a container sees. ``cap_bytes`` is the container's cap on it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    cap_bytes: int


class Request(NamedTuple):
    """The request of a container, for the GPUs of a node.

    Attributes:
        gpus: in the order of its visible list.
        weight: compute weight; 0: it is promised no time, as a claim without cores.
        high_priority: whether it has high priority.
        notes: what the caller may not have meant, one sentence each.
        asked: what the request was made from, for refusals to quote; None: not known here.
    """

    gpus: tuple[GpuShare, ...]
    weight: int
    high_priority: bool
    notes: tuple[str, ...] = ()
    asked: Asked | None = None


def parse_environment(entries: Iterable[str]) -> dict[str, str]:
    """Return the variables in a list of ``NAME=value``; the last duplicate wins, as in runc.

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


class Asked(NamedTuple):
    """A request, as far as it can be read without knowing the node's GPUs.

    Attributes:
        given: the variables, as written.
        share: GiB of each GPU; empty: ``sizes`` count, or else the node's default size.
        dev: the whole memory of each GPU as the user states it, in GiB.
        weight: compute weight; 0: it is promised no time, as a claim without cores.
        high_priority: whether it has high priority.
        has_units: whether it was typed to our own tools, which know units.
        sizes: the sizes as written, with units.
        default_memsize: cap on each GPU of a container that names none, in bytes or as a part such
            as 40% or 6/15; 0: the node has none, or the container names one.
    """

    given: Mapping[str, str]
    share: Sequence[int] = ()
    dev: Sequence[int] | None = None
    weight: int = 1
    high_priority: bool = False
    has_units: bool = False
    sizes: Sequence[str] = ()
    default_memsize: int | str = 0


def parse_request(
    env: Mapping[str, str],
    gpus: Sequence[Gpu],
    *,
    default_memsize: int | str = 0,
    has_units: bool = False,
) -> Request | None:
    """Parse a container's request, for GPUs that are known already.

    Raises:
        EnvError: one sentence that names the variable, the value given, and what is allowed.
    """
    asked = parse_variables(env, lambda: default_memsize, has_units=has_units)
    return None if asked is None else resolve_request(asked, gpus)


def parse_variables(
    env: Mapping[str, str],
    default_memsize: Callable[[], int | str],
    *,
    has_units: bool = False,
    allow_off: bool = True,
) -> Asked | None:
    """Read what a container asks for.

    Args:
        env: the container's own environment.
        default_memsize: returns the node's default size; called only if the container names none.
        has_units: whether ``MEM_CONTAINER`` without ``MEM_DEV`` has sizes such as 6GiB or 40%, as
            users type them to our own tools.
        allow_off: whether the node lets a container switch cgpu off.

    Returns:
        What it asks for; None if its variables alone show that cgpu is off for it.

    Raises:
        EnvError: one sentence that names the variable, the value given, and what is allowed.
    """
    if parse_truth(DISABLE, env.get(DISABLE, "false")):
        _check_off(DISABLE, env[DISABLE], allow_off=allow_off)
        return None
    _check_names(env)
    asked = _parse_asked(env, default_memsize, has_units=has_units, allow_off=allow_off)
    if asked is not None:
        _check_own_names(env)
    return asked


def _parse_asked(
    env: Mapping[str, str],
    default_memsize: Callable[[], int | str],
    *,
    has_units: bool,
    allow_off: bool,
) -> Asked | None:
    dev = parse_gib_list(MEM_DEV, env[MEM_DEV], 1) if MEM_DEV in env else None
    weight = parse_number(WEIGHT, env.get(WEIGHT, "1"), 1, MOST_INST, _MOST_WEIGHT)
    high_priority = bool(parse_number(HIGH_PRIO, env.get(HIGH_PRIO, "0"), 0, 1))
    if VISIBLE in env:
        check_devices(VISIBLE, env[VISIBLE])
    written = env.get(MEM_CONTAINER, "").strip(BLANKS)
    asked = Asked(env, (), dev, weight, high_priority, has_units)
    if written and has_units and dev is None:
        return asked._replace(sizes=split_items(written))
    if written:
        share = parse_gib_list(MEM_CONTAINER, written, 0)
        if 0 in share:
            _check_off(MEM_CONTAINER, env[MEM_CONTAINER], allow_off=allow_off)
            return None
        return asked._replace(share=share)
    size = default_memsize()
    return asked._replace(default_memsize=size) if size else None


def without_size(env: Mapping[str, str]) -> str | None:
    """Return a warning if a container has variables of a share but no size; else None.

    The size may have been forgotten, or left empty by a template.
    """
    disabled = env.get(DISABLE, "").strip(BLANKS).lower() in {"true", "1"}
    if disabled or env.get(MEM_CONTAINER, "").strip(BLANKS):
        return None
    for name in _OF_A_SHARE:
        if name in env:
            return (
                f"{name}={printable(env[name])} has no effect without {MEM_CONTAINER}, which is"
                f" {'empty' if MEM_CONTAINER in env else 'not set'}: cgpu is off for the container"
            )
    return None


def _check_off(variable: str, value: str, *, allow_off: bool) -> None:
    if not allow_off:
        raise env_error(variable, value, "this node lets no container switch cgpu off (allow_off)")


def resolve_request(asked: Asked, gpus: Sequence[Gpu]) -> Request | None:
    """Return the request that ``asked`` makes on a node. Admission checks whether it fits.

    Args:
        asked: what a container asks for.
        gpus: the GPUs of the node, in the order of their indices.

    Returns:
        The request, or None if the container should see no GPU.

    Raises:
        EnvError: see ``parse_variables``.
        GpuLostError: a GPU that is asked for does not answer.
    """
    env = asked.given
    if (asked.share or asked.sizes) and not gpus:
        raise env_error(MEM_CONTAINER, env[MEM_CONTAINER], "this node has no GPU")
    visible = _select_visible(env, gpus)
    if not visible:
        return None
    sizes = wanted_of(asked, visible)
    shares = (
        GpuShare(gpu.index, gpu.uuid, min(wanted.to_bytes(gpu.total_bytes), gpu.total_bytes))
        for gpu, wanted in zip(visible, sizes, strict=True)
    )
    totals = [(gpu.index, gpu.total_bytes) for gpu in visible]
    unit = env.get(MEM_UNIT, "GiB") if asked.share else "GiB"
    notes = (
        format_misstated_default(totals, asked.default_memsize)
        if asked.default_memsize
        else format_misstated(totals, sizes, _format_stated(asked), unit)
    )
    return Request(tuple(shares), asked.weight, asked.high_priority, notes, asked)


def _check_names(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if name.startswith(PREFIX) and name not in _OURS and name not in PASSED_OVER:
            raise _make_unknown_error(name, value)


def _check_own_names(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name.startswith(_OWN_PREFIX) or name in _OWN or name.startswith(_SIMULATED):
            continue
        # A service called cgpu-x makes Kubernetes set such variables.
        if _strip_prefix(name) == _POLICY or _find_meant_name(name):
            raise _make_unknown_error(name, value)


def _make_unknown_error(name: str, value: str) -> EnvError:
    """Return the error for a variable that only looks like one of ours."""
    near = _find_meant_name(name)
    meant = f"did you mean {near}?" if near else f"there are {', '.join(sorted(_OURS))}."
    if _strip_prefix(name) == _POLICY:
        meant = "the policy is a GPU's, which cgpu set changes."
    advice = f"Take it out, or set {DISABLE}=true for a container without cgpu"
    return env_error(printable(name), value, f"there is no such variable: {meant} {advice}")


def _find_meant_name(name: str) -> str | None:
    others = PASSED_OVER if name.startswith(PREFIX) else ()  # an image may have a CGPU_COUNT
    known = {_strip_prefix(other): other for other in (*_OURS, *others, *_OWN)}
    near = find_nearest(_strip_prefix(name).strip(BLANKS).upper(), known)
    return known[near] if near else None


def _strip_prefix(name: str) -> str:
    return name.removeprefix(PREFIX).removeprefix(_OWN_PREFIX)


def _select_visible(env: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu]:
    if VISIBLE in env:
        return select_gpus(VISIBLE, env[VISIBLE], gpus)
    nvidia = env.get(NVIDIA_VISIBLE)
    if nvidia is None:
        return select_answering(gpus)
    if nvidia.strip(BLANKS) in NO_GPU:
        return []
    return select_gpus(NVIDIA_VISIBLE, nvidia, gpus)


def wanted_of(asked: Asked, visible: Sequence[Gpu]) -> list[Size]:
    """Return the wanted size of each GPU. If no GPU is visible, return the sizes as written.

    Raises:
        EnvError: a size that the GPU, or no GPU, can have; or more sizes than GPUs.
    """
    env = asked.given
    if asked.share:
        return _compute_parts(env, asked, len(visible))
    if not asked.sizes:
        return [parse_size(str(asked.default_memsize)) or Size(0)] * len(visible)
    words = _per_gpu(MEM_CONTAINER, env, asked.sizes, len(visible))
    sizes = [parse_size(word) for word in words]
    gpus: list[tuple[int | None, int]] = [(gpu.index, gpu.total_bytes) for gpu in visible]
    for gpu, wanted in zip(gpus or [(None, LARGEST_BYTES)], sizes, strict=True):
        compute_cap(MEM_CONTAINER, env[MEM_CONTAINER], wanted, *gpu)
    return [wanted for wanted in sizes if wanted]


def _compute_parts(env: Mapping[str, str], asked: Asked, count: int) -> list[Size]:
    """Return the part CONTAINER/DEV for each of ``count`` GPUs."""
    if asked.dev is None:
        given = f"{MEM_CONTAINER}={env[MEM_CONTAINER]}"
        raise env_error(MEM_DEV, None, f"{given} needs it, the whole GiB of each GPU such as 15")
    shares = _per_gpu(MEM_CONTAINER, env, asked.share, count)
    devs = _per_gpu(MEM_DEV, env, asked.dev, count)
    for part, whole in zip(shares, devs, strict=True):
        if part > whole:
            allowed = f"{part} GiB is more than the {whole} GiB of {MEM_DEV}"
            raise env_error(MEM_CONTAINER, env[MEM_CONTAINER], allowed)
    return [Size(*pair, is_stated=True) for pair in zip(shares, devs, strict=True)]


def _format_stated(asked: Asked) -> str:
    """Return how the caller stated the whole memory of each GPU."""
    given = asked.given
    if asked.sizes:
        return f"--mem {printable(given[MEM_CONTAINER])}"
    pair = f"{given[MEM_CONTAINER]}/{given.get(MEM_DEV)}"
    return f"--mem {printable(pair)}" if asked.has_units else MEM_DEV


def _per_gpu(
    variable: str, env: Mapping[str, str], given: Sequence[Given], count: int
) -> list[Given]:
    """Return one value for each of ``count`` GPUs. If too few are given, the last one repeats."""
    if len(given) > max(count, 1):
        visible = {0: "no GPU is", 1: "1 GPU is"}.get(count, f"{count} GPUs are")
        raise env_error(variable, env[variable], f"{len(given)} values, but {visible} visible")
    return [*given, *[given[-1]] * (count - len(given))]
