"""The limits page (``limits.h``): packed by the host, read back by its tools."""

from __future__ import annotations

from cgpu_env.record import NamedTuple
from cgpu_env.version import VERSION
from cgpu_native._native import ffi, lib
from cgpu_native.errors import FormatError
from cgpu_native.files import read_file
from cgpu_native.uuids import uuid_bytes, uuid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

MAX_GPUS: int = lib.CGPU_MAX_GPUS
ID_SIZE: int = lib.CGPU_ID_SIZE
LIMITS_VERSION: int = lib.CGPU_LIMITS_VERSION
MISSTATED: int = lib.CGPU_LIMITS_MISSTATED
METERED_ROUGHLY: int = lib.CGPU_METERED_ROUGHLY
HEAD_SIZE = 8
_FIRST = "0.1.0"  # this release did not write its number


class LimitsGpu(NamedTuple):
    """The limits of a container on one GPU. Sizes in bytes."""

    uuid: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    """The GPU's index on the host."""
    cap_bytes: int
    total_bytes: int
    """The GPU's memory as NVML reports it."""
    context_bytes: int = 0
    """The cost of one CUDA context; 0 if unknown."""
    outside_bytes: int = 0
    """What is held outside the ledger, as the host's audit found; counts as used."""
    gate: int = 0
    """The gate word (``gate.h``)."""
    share_ppm: int = 0
    """Share of the GPU's time while nobody arbitrates, in millionths."""
    offset_ppm: int = 0
    """Where that share begins in the fallback period, in millionths of it."""
    limit_ppm: int = 0
    """The most that it may have while others compete, in millionths."""
    measured_ppm: int = 0
    """What it was charged of the GPU's time in the last second, in millionths, if ``metered``."""
    charged_ns: int = 0
    """GPU time charged so far, in nanoseconds."""
    throttled_ns: int = 0
    """Time in which threads of it were seen waiting at its closed gate, in nanoseconds."""
    waits: int = 0
    """How often such waiting began."""
    metered: int = 0
    """``CGPU_METERED`` while the arbiter keeps these figures, ``CGPU_METERED_ROUGHLY`` if it
    estimates."""
    heartbeat_ns: int = 0
    """``CLOCK_MONOTONIC`` of the arbiter's last sign of life; 0 if there was none."""

    @property
    def is_rough(self) -> bool:
        """Whether ``measured_ppm`` is an estimate."""
        return bool(self.metered & METERED_ROUGHLY)


_NUMBERS = LimitsGpu._fields[1:]  # named as in ``struct cgpu_limits_gpu``


class Limits(NamedTuple):
    """The limits of one container."""

    id: str
    gpus: tuple[LimitsGpu, ...]
    """In the order of the visible list."""
    weight: int = 1
    high_priority: bool = False
    policy: int = 0
    flags: int = 0


def pack_limits(  # noqa: PLR0913 - the fields of the page
    container_id: str,
    gpus: Sequence[LimitsGpu],
    *,
    weight: int = 1,
    high_priority: bool = False,
    policy: int = 0,
    flags: int = 0,
) -> bytes:
    """Return the bytes of a limits page.

    Raises:
        ValueError: for too many GPUs, a container id that is too long, or a bad UUID.
        OverflowError: for a number that does not fit its field.
    """
    name = container_id.encode()
    if len(name) >= ID_SIZE:
        raise ValueError(f"container id of {len(name)} bytes, at most {ID_SIZE - 1} are allowed")
    if len(gpus) > MAX_GPUS:
        raise ValueError(f"{len(gpus)} GPUs, at most {MAX_GPUS} are allowed")
    page = ffi.new("struct cgpu_limits *")
    page.magic, page.version = lib.CGPU_LIMITS_MAGIC, lib.CGPU_LIMITS_VERSION
    page.size, page.gpu_count = ffi.sizeof("struct cgpu_limits"), len(gpus)
    page.weight, page.high_priority = weight, int(high_priority)
    page.policy, page.flags = policy, flags
    page.id = name
    page.release = VERSION.encode()[: lib.CGPU_RELEASE_SIZE - 1]
    for entry, gpu in zip(page.gpus, gpus, strict=False):
        entry.uuid = list(uuid_bytes(gpu.uuid))
        for field in _NUMBERS:
            setattr(entry, field, int(getattr(gpu, field)))
    return bytes(ffi.buffer(page))


def _unpack_gpu(entry: Any) -> LimitsGpu:  # noqa: ANN401 - cffi's structures have no types
    return LimitsGpu(uuid_text(bytes(entry.uuid)), *(getattr(entry, each) for each in _NUMBERS))


def unpack_limits(data: bytes) -> Limits:
    """Return what a limits page says.

    Raises:
        FormatError: if ``data`` is no limits page of this release.
    """
    size = ffi.sizeof("struct cgpu_limits")
    page = ffi.new("struct cgpu_limits *")
    ffi.buffer(page)[:] = data[:size].ljust(size, b"\0")
    expected = (lib.CGPU_LIMITS_MAGIC, lib.CGPU_LIMITS_VERSION, size)
    if (page.magic, page.version, page.size) != expected or len(data) != size:
        raise FormatError(lib.CGPU_EFORMAT, "not a limits page of this release")
    if page.gpu_count > MAX_GPUS:
        raise FormatError(lib.CGPU_EFORMAT, f"a limits page with {page.gpu_count} GPUs")
    return Limits(
        id=ffi.string(page.id, ID_SIZE).decode(errors="replace"),
        gpus=tuple(_unpack_gpu(page.gpus[number]) for number in range(page.gpu_count)),
        weight=page.weight,
        high_priority=bool(page.high_priority),
        policy=page.policy,
        flags=page.flags,
    )


def read_limits(path: Path | str) -> Limits:
    """Return what the limits page at ``path`` says.

    Raises:
        OSError: if it cannot be read.
        FormatError: if it is no limits page of this release.
    """
    return unpack_limits(read_file(path, ffi.sizeof("struct cgpu_limits") + 1))


class Head(NamedTuple):
    """The head of a limits file or ledger of any release."""

    magic: int
    version: int
    release: str
    """The release that made the container."""


def read_head(path: Path | str) -> Head | None:
    """Return the head of the limits page or the ledger at ``path``, of whatever version.

    Returns:
        None if none can be read; ``release`` is of use in limits pages only.
    """
    try:
        data = read_file(path, ffi.offsetof("struct cgpu_limits", "gpus"))
    except (OSError, FormatError):
        return None
    page = ffi.new("struct cgpu_limits *")
    if len(data) < ffi.offsetof("struct cgpu_limits", "gpus"):
        return None
    ffi.memmove(page, data, len(data))
    release = ffi.string(page.release, lib.CGPU_RELEASE_SIZE).decode(errors="replace")
    return Head(page.magic, page.version, release or _FIRST)


def check_version(data: bytes) -> None:
    """Refuse the page that begins with ``data`` if it is not of this release's version.

    Raises:
        FormatError: it is of another version.
    """
    expected = (lib.CGPU_LIMITS_MAGIC, lib.CGPU_LIMITS_VERSION)
    words = ffi.from_buffer("uint32_t[]", data[:HEAD_SIZE].ljust(HEAD_SIZE, b"\0"))
    if (words[0], words[1]) != expected:
        raise FormatError(lib.CGPU_EFORMAT, "not a limits page of this release")
