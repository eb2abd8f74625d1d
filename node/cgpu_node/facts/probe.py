"""Ask the driver what this node is. This is a program of its own, because the driver may hang.

``python -I -S probe.py QUESTION DRIVER_DIR`` prints JSON. ``facts``, ``modes`` and ``attributes``
query NVML and are quick. ``contexts`` creates a CUDA context on each GPU, the only way to know what
one costs, and lists the GPUs as CUDA numbers them by default. For each line that it reads,
``holdings`` prints once which process holds how much of each GPU; for the GPUs whose UUIDs are on
that line, also how busy each process keeps them. For each line, ``gpus`` prints once the same as
``facts``, and the links. The program needs only the standard library, ``links.py`` and
``cgpu_node.jsontext``, so that it can run isolated; ``json`` would be a tenth of its memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    Fields = dict[str, object]
    Handle = ctypes.c_void_p

_FEW_PROCESSES, _MANY_PROCESSES = 1 << 10, 1 << 22  # as many as a machine can have
_NOT_AVAILABLE = (1 << 64) - 1
_CONTEXT_SECONDS = 0.2
_WHOLE = 100  # percent; drivers report nonsense above it for processes that end
# A process may be in several lists; drivers for some products have only the first list.
_COMPUTE, *_OTHERS = (
    f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")
)
_NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND = 3, 6, 7, 13
# NVML's errors of the call itself, not of the GPU.
_OF_CALLS = {1, 2, _NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND, 25}
_RESET = "nvidia-smi --gpu-reset -i {}, or reboot"
_ADVICE = {
    4: "let this user open its device node",
    8: "connect its power cables",
    9: "load the kernel module: modprobe nvidia",
    18: "reboot, or reload the kernel modules:"
    " modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
}
_WINDOW_US = 1_000_000


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("at_us", ctypes.c_uint64),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    )


class _Usage(ctypes.Structure):
    _fields_ = (
        ("at_us", ctypes.c_uint64),
        ("pid", ctypes.c_uint),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
        *((name, ctypes.c_uint) for name in ("jpeg", "optical_flow")),
    )


class _Usages(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("since_us", ctypes.c_uint64),
        ("usages", ctypes.POINTER(_Usage)),
    )


class _ProcessV1(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_uint64),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _FailedError(Exception):
    """A call of the driver failed. ``status`` is NVML's number of the error, or 0."""

    def __init__(self, name: str, status: int, words: str) -> None:
        super().__init__(name, status, words)
        self.name, self.status, self.words = name, status, words


class _Library:
    """A driver library whose calls raise when they fail."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=os.RTLD_NOW)

    def call(self, name: str, *arguments: object) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status != 0:
            self.fail(name, status)

    def fail(self, name: str, status: int) -> NoReturn:
        """Raise an error with the driver's words for ``status``, and its documented number."""
        words = getattr(self._library, "nvmlErrorString", None)
        if words is None:
            raise _FailedError(name, 0, f"error {status}")
        words.restype = ctypes.c_char_p
        raise _FailedError(name, status, f"{words(status).decode()} (error {status})")

    def try_call(self, name: str, *arguments: object) -> int:
        """Call the driver and return its status, even if it has no such function."""
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function else _FUNCTION_NOT_FOUND

    def find_newest(self, name: str, *suffixes: str) -> str:
        """Return ``name`` with the first of ``suffixes`` that this driver has, else as it is."""
        names = (name + suffix for suffix in suffixes)
        return next((each for each in names if hasattr(self._library, each)), name)

    def read_text(self, name: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, ctypes.c_uint(96))
        return buffer.value.decode()


def _read_gpus(nvml: _Library, read: Callable[[Handle, str], Fields]) -> dict[str, list[Fields]]:
    """Call ``read`` for each GPU, with its handle and UUID, and return the results.

    A GPU that does not answer is among the ``lost``; the others are read nevertheless.
    """
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    gpus: list[Fields] = []
    lost: list[Fields] = []
    for index in range(count.value):
        handle, uuid = ctypes.c_void_p(), ""
        try:
            nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            uuid = nvml.read_text("nvmlDeviceGetUUID", handle)
            gpus.append({"index": index, "uuid": uuid, **read(handle, uuid)})
        except _FailedError as error:
            if error.status in _OF_CALLS:
                raise
            why = f"{error.words}; {_ADVICE.get(error.status, _RESET.format(index))}"
            lost.append({"index": index, "uuid": uuid, "lost": why})
    return {"gpus": gpus, "lost": lost}


def _read_memory(nvml: _Library, handle: Handle) -> _Memory:
    memory = _Memory()
    nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return memory


def _read_facts(nvml: _Library) -> Fields:
    from cgpu_node.facts.attributes import is_in_mig_mode

    def read(handle: Handle, _: str) -> Fields:
        minor = ctypes.c_uint()
        nvml.call("nvmlDeviceGetMinorNumber", handle, ctypes.byref(minor))
        name, total = nvml.read_text("nvmlDeviceGetName", handle), _read_memory(nvml, handle).total
        found: Fields = {"name": name, "memory_bytes": total, "minor": minor.value}
        return {**found, "mig": True} if is_in_mig_mode(nvml, handle) else found

    version = nvml.read_text("nvmlSystemGetDriverVersion")
    return {"driver_version": version, **_read_gpus(nvml, read)}


def _read_modes(nvml: _Library) -> Fields:
    """Return the compute modes, as NVML numbers them, by UUID of the GPUs that have one."""

    def read(handle: Handle, _: str) -> Fields:
        mode = ctypes.c_int()
        failed = nvml.try_call("nvmlDeviceGetComputeMode", handle, ctypes.byref(mode))
        return {} if failed else {"mode": mode.value}

    gpus = _read_gpus(nvml, read)["gpus"]
    return {str(gpu["uuid"]): gpu["mode"] for gpu in gpus if "mode" in gpu}


def _own_bytes(nvml: _Library, handle: Handle) -> int:
    """Return how many bytes NVML reports for this process; 0 if it reports none."""
    return _read_holders(nvml, handle).get(os.getpid()) or 0


def _read_holders(nvml: _Library, handle: Handle) -> dict[int, int | None]:
    """Return the bytes that each process of the host holds; None: NVML does not report them."""
    found: dict[int, int | None] = {}
    for kind in (_COMPUTE, *_OTHERS):
        for each in _list_processes(nvml, kind, handle):
            known = found.get(each.pid, 0)
            given = each.used != _NOT_AVAILABLE and known is not None
            found[each.pid] = max(known or 0, each.used) if given else None
    return found


def _list_processes(nvml: _Library, kind: str, handle: Handle) -> Sequence[_Process | _ProcessV1]:
    """Return a list of any length: a process that makes it long must not hide the others."""
    name = nvml.find_newest(kind, "_v3", "_v2")  # v3 came with driver 510, v2 with 450
    entry = _ProcessV1 if name == kind else _Process
    room, status = _FEW_PROCESSES, _INSUFFICIENT_SIZE
    while status == _INSUFFICIENT_SIZE and room <= _MANY_PROCESSES:
        processes, count = (entry * room)(), ctypes.c_uint(room)
        status = nvml.try_call(name, handle, ctypes.byref(count), processes)
        room *= 4
    if status in {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND} and kind != _COMPUTE:
        return []
    if status != 0:
        nvml.fail(name, status)
    return processes[: count.value]


def _read_used_bytes(nvml: _Library, handle: Handle) -> int:
    """Return the bytes in use without the driver's own, which drivers before 510 never count."""
    memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
    status = nvml.try_call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
    if status == _FUNCTION_NOT_FOUND:
        return int(_read_memory(nvml, handle).used)
    if status != 0:
        nvml.fail("nvmlDeviceGetMemoryInfo_v2", status)
    return int(memory.used)


def _read_holdings(nvml: _Library, wanted: Sequence[str]) -> dict[str, list[Fields]]:
    """Return for each GPU its memory in use, without the driver's own, its holders, and its use.

    Args:
        nvml: the driver.
        wanted: UUIDs of the GPUs for which the processes' utilisation is wanted as well.
    """

    def read(handle: Handle, uuid: str) -> Fields:
        busy = _read_busy_processes(nvml, handle) if uuid in wanted else None
        return {
            "used_bytes": _read_used_bytes(nvml, handle),
            "holders": [*_read_holders(nvml, handle).items()],
            "utilisation": _read_utilisation(nvml, handle),
            "busy": None if busy is None else [*busy.items()],
        }

    return _read_gpus(nvml, read)


def _read_utilisation(nvml: _Library, handle: Handle) -> int | None:
    """Return the utilisation in percent; None if the driver does not report it, as under MIG."""
    rates = _Rates()
    status = nvml.try_call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
    return min(rates.gpu, 100) if status == 0 else None


def _read_busy_processes(nvml: _Library, handle: Handle) -> dict[int, int] | None:
    """Return by pid the percent of the last second or less, without idle ones; None: unknown."""
    found, count = (_Sample * _FEW_PROCESSES)(), ctypes.c_uint(_FEW_PROCESSES)
    since = time.time_ns() // 1000 - _WINDOW_US
    name = "nvmlDeviceGetProcessUtilization"
    status = nvml.try_call(name, handle, found, ctypes.byref(count), ctypes.c_uint64(since))
    samples: Sequence[_Sample | _Usage] = found[: count.value if status == 0 else 0]
    if not any(each.sm for each in samples):  # on some GPUs only the newer call has figures
        usages = (_Usage * _FEW_PROCESSES)()
        version = ctypes.sizeof(_Usages) | 1 << 24
        all_ = _Usages(version, _FEW_PROCESSES, since, usages)
        newer = nvml.try_call("nvmlDeviceGetProcessesUtilizationInfo", handle, ctypes.byref(all_))
        if newer in {0, _NOT_FOUND}:
            status, samples = newer, usages[: all_.count if newer == 0 else 0]
    if status not in {0, _NOT_FOUND}:  # it is "not found" if all were idle
        return None
    valid = [each for each in samples if each.sm <= _WHOLE]
    return {each.pid: each.sm for each in sorted(valid, key=lambda each: each.at_us)}


def _list_devices(cuda: _Library) -> dict[str, ctypes.c_int]:
    cuda.call("cuInit", ctypes.c_uint(0))
    count = ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    found = {}
    for ordinal in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
        cuda.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        cuda.call("cuDeviceGetUuid", uuid, device)
        found[bytes(uuid).hex()] = device
    return found


def _measure_contexts(nvml: _Library, cuda: str) -> Fields:
    """Return CUDA's facts about the GPUs.

    Returns:
        ``costs``: UUID -> bytes that one context costs, by NVML's figure for this process if there
        is one. ``failed``: UUID -> why the cost is not known. ``order``: UUIDs as CUDA numbers the
        GPUs by default; empty if that is not known of all GPUs.
    """
    found = _read_gpus(nvml, lambda *_: {})
    if found["lost"]:  # what CUDA does about a lost GPU is not known
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu["uuid"]) for gpu in found["gpus"])
    library = _Library(cuda)
    devices = _list_devices(library)

    def read(handle: Handle, uuid: str) -> Fields:
        device = devices.get(_uuid_digits(uuid))
        if device is None:
            return {}
        try:
            return {"cost": _measure_cost(nvml, handle, library, device)}
        except _FailedError as error:
            if error.status:  # NVML's: the GPU is lost
                raise
            return {"failed": f"{error.name}: {error.words}"}

    gpus = _read_gpus(nvml, read)["gpus"]
    uuids = {_uuid_digits(str(gpu["uuid"])): str(gpu["uuid"]) for gpu in found["gpus"]}
    is_known = not found["lost"] and uuids.keys() <= devices.keys()
    return {
        "costs": {str(gpu["uuid"]): gpu["cost"] for gpu in gpus if "cost" in gpu},
        "failed": {str(gpu["uuid"]): gpu["failed"] for gpu in gpus if "failed" in gpu},
        "order": [uuids[digits] for digits in devices if digits in uuids] if is_known else [],
    }


def _uuid_digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").replace("-", "")


def _measure_cost(nvml: _Library, handle: Handle, cuda: _Library, device: ctypes.c_int) -> int:
    before = _read_memory(nvml, handle).used
    context = ctypes.c_void_p()
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    cuda.call("cuCtxSynchronize")
    time.sleep(_CONTEXT_SECONDS)
    after = _read_memory(nvml, handle).used
    cost = _own_bytes(nvml, handle) or max(0, after - before)
    cuda.call(cuda.find_newest("cuDevicePrimaryCtxRelease", "_v2"), device)  # v2 came with 450
    return int(cost)


def main(question: str, driver_dir: str) -> None:
    """Answer the question about the driver in ``driver_dir``, as JSON on standard output."""
    try:
        _print_answer(question, driver_dir)
    except _FailedError as error:
        advice = f"; {_ADVICE[error.status]}" if error.status in _ADVICE else ""
        sys.exit(f"{error.name}: {error.words}{advice}")


def _print_answer(question: str, driver_dir: str) -> None:
    from cgpu_node.facts.attributes import read_attributes
    from cgpu_node.facts.links import LinkReader
    from cgpu_node.jsontext import dumps

    nvml = _Library(f"{driver_dir}/libnvidia-ml.so.1")
    nvml.call("nvmlInit_v2")
    if question in {"holdings", "gpus"}:
        reader, holdings = LinkReader(nvml), question == "holdings"
        for line in sys.stdin:
            asked = _read_holdings(nvml, line.split()) if holdings else _read_facts(nvml)
            more = {} if holdings else {"links": reader.read_links(asked)}
            print(dumps({**asked, **more}), flush=True)  # noqa: T201
        return
    if question == "contexts":
        answer = _measure_contexts(nvml, f"{driver_dir}/libcuda.so.1")
    elif question == "attributes":
        answer = {**_read_gpus(nvml, lambda handle, _: read_attributes(nvml, handle))}
    else:
        answer = {"facts": _read_facts, "modes": _read_modes}[question](nvml)
    print(dumps(answer))  # noqa: T201 (its parent reads it)


if __name__ == "__main__":
    sys.path.insert(0, os.path.realpath(f"{__file__}/../../.."))
    main(*sys.argv[1:3])
