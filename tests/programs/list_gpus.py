"""Show as JSON which GPUs CUDA and NVML have for a program: ``python list_gpus.py [TOOL]``.

With a TOOL, show those of the workers that it would start, from what ``CUDA_VISIBLE_DEVICES`` says:
``vllm`` takes its items for numbers and asks NVML about these; ``deepspeed`` takes them for
numbers, sorts these and gives each worker all of them; ``ray`` gives each worker one item.
``context`` shows the status with which each GPU of CUDA gives a context.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

MIB = 1 << 20
VISIBLE = "CUDA_VISIBLE_DEVICES"


def cuda() -> dict[str, Any]:
    """The status of cuInit, and the UUID and MiB of each device."""
    library = ctypes.CDLL("libcuda.so.1")
    status, count, found = library.cuInit(0), ctypes.c_int(), []
    library.cuDeviceGetCount(ctypes.byref(count))
    for number in range(count.value):
        uuid, total = (ctypes.c_uint8 * 16)(), ctypes.c_size_t()
        library.cuDeviceGetUuid(uuid, number)
        library.cuDeviceTotalMem_v2(ctypes.byref(total), number)
        found.append([bytes(uuid).hex(), total.value // MIB])
    return {"status": status, "gpus": found}


def nvml(number: int) -> list[Any]:
    """The UUID and MiB of the GPU with this number; None: it is not shown how many."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    memory = (ctypes.c_uint64 * 3)()
    library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
    library.nvmlDeviceGetUUID(handle, text, 96)
    status = library.nvmlDeviceGetMemoryInfo(handle, memory)
    uuid = text.value.decode().removeprefix("GPU-").replace("-", "")
    return [uuid, None if status else memory[0] // MIB]


def worker(visible: str) -> list[Any]:
    """What a child sees for which the variable is set."""
    words = [sys.executable, "-I", __file__]
    done = subprocess.run(
        words, env={**os.environ, VISIBLE: visible}, stdout=subprocess.PIPE, text=True, check=True
    )
    gpus: list[Any] = json.loads(done.stdout)["gpus"]
    return gpus


def main() -> None:
    tool = sys.argv[1] if len(sys.argv) > 1 else ""
    items = os.environ.get(VISIBLE, "").split(",")
    answer: Any = cuda()
    if tool == "context":
        library, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        numbers = range(len(answer["gpus"]))
        answer = [library.cuDevicePrimaryCtxRetain(ctypes.byref(context), n) for n in numbers]
    elif tool == "vllm":
        answer = [nvml(int(items[number])) for number in range(len(answer["gpus"]))]
    elif tool == "deepspeed":
        answer = worker(",".join(map(str, sorted(map(int, items)))))
    elif tool == "ray":
        answer = [gpu for item in items for gpu in worker(item)]
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main()
