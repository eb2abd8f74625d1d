"""The simulated machine as Python describes it. Its file is written by the library itself."""

from __future__ import annotations

import ctypes
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIBRARIES = Path(__file__).resolve().parent / "_lib"


class Gpu(NamedTuple):
    """One GPU. What is not given is that of a Tesla T4.

    GPUs of one ``island`` above 0 have ``nvlinks`` NVLinks: to each other one of it, or all to its
    switch if it is ``switched``. A GPU in ``mig`` mode has no instances.
    """

    name: str = "Tesla T4"
    mib: int = 15109
    uuid: str | None = None
    context_mib: int = 105
    reserved_mib: int = 0
    capability: tuple[int, int] = (7, 5)
    sm_count: int = 40
    island: int = 0
    nvlinks: int = 0
    switched: bool = False
    mig: bool = False


TESLA_T4 = Gpu()


class Fault(NamedTuple):
    """What the ``nth`` call from now of an entry point whose name starts with ``call`` does.

    It waits ``delay_us``, and then is killed, or returns ``result`` (a CUresult; 0: goes on).
    """

    call: str
    nth: int = 1
    result: int = 0
    delay_us: int = 0
    kill: bool = False
    repeat: bool = False


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARIES / "libcuda.so.1"))


def _describe(gpu: Gpu, unique: str) -> str:
    major, minor = gpu.capability
    return (
        f"gpu\nname {gpu.name}\nuuid {unique}\nmib {gpu.mib}\ncontext_mib {gpu.context_mib}\n"
        f"reserved_mib {gpu.reserved_mib}\ncapability_major {major}\ncapability_minor {minor}\n"
        f"sm_count {gpu.sm_count}\nisland {gpu.island}\nnvlinks {gpu.nvlinks}\n"
        f"switched {int(gpu.switched)}\nmig {int(gpu.mig)}\n"
    )


def gpu_uuid(path: Path, index: int) -> str:
    """The UUID of GPU ``index`` of the machine at ``path`` unless one is given: always the same."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{path}#{index}')}"


def create(
    path: Path,
    gpus: Sequence[Gpu],
    cuda_version: int,
    driver_version: str,
    compute: Mapping[str, int],
) -> None:
    """Write the machine file at ``path``, open to every user; ``compute``: how its GPUs do that.

    Raises:
        ValueError: The library does not accept the description.
    """
    text = f"cuda_version {cuda_version}\ndriver_version {driver_version}\n"
    text += "".join(f"{key} {value}\n" for key, value in compute.items())
    for index, gpu in enumerate(gpus):
        text += _describe(gpu, gpu.uuid or gpu_uuid(path, index))
    status = _library().cgpu_sim_create(bytes(path), text.encode())
    if status != 0:
        raise ValueError(f"cannot make the simulated machine {path} (status {status})")


class GpuTime(NamedTuple):
    """The GPU time that one living process has had, in ns, up to the moment of the question.

    It holds ``used_bytes`` of the GPU's memory at that moment.
    """

    pid: int  # as the caller sees it; 0: in a pid namespace that the caller cannot see
    busy_ns: int
    used_bytes: int
    tag: str  # CGPU_SIM_TAG of the process
    command: str  # path of its executable


def gpu_times(path: Path, gpu: int = 0) -> list[GpuTime]:
    """What each process on GPU ``gpu`` of the machine at ``path`` has had of it: the truth.

    Raises:
        ValueError: There is no machine, or it has no such GPU.
    """
    out = ctypes.create_string_buffer(1 << 17)
    status = _library().cgpu_sim_usage(bytes(_file(path)), gpu, out, ctypes.c_size_t(len(out)))
    if status != 0:
        raise ValueError(f"cannot read GPU {gpu} of the machine {path} (status {status})")
    lines = [line.split("\t") for line in out.value.decode().splitlines()]
    return [GpuTime(int(pid), int(ns), int(held), *rest) for pid, ns, held, *rest in lines]


def _file(path: Path) -> Path:
    return path / "machine" if path.is_dir() else path


def inject(path: Path, fault: Fault) -> None:
    """Tell the machine at ``path`` (its file, or the driver directory) to fail.

    Raises:
        ValueError: There is no machine, or it has too many faults pending.
    """
    machine = _file(path)
    status = _library().cgpu_sim_inject(
        bytes(machine),
        fault.call.encode(),
        fault.nth,
        fault.result,
        fault.delay_us,
        int(fault.kill),
        int(fault.repeat),
    )
    if status != 0:
        raise ValueError(f"cannot inject a fault into {machine} (status {status})")


def lose(path: Path, gpu: int, result: int = 15, *, has_handle: bool = False) -> None:
    """Let every query of GPU ``gpu`` of the machine at ``path`` give ``result``; 0: it answers.

    By default NVML's error is "GPU is lost". ``has_handle``: its handle is given all the same.

    Raises:
        ValueError: There is no machine, or it has no such GPU.
    """
    machine = _file(path)
    status = _library().cgpu_sim_lose(bytes(machine), gpu, result, int(has_handle))
    if status != 0:
        raise ValueError(f"cannot lose GPU {gpu} of {machine} (status {status})")
