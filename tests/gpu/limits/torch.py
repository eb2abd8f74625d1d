"""Limits under cgpu-run as PyTorch meets them, in a capped child."""

from __future__ import annotations

from typing import Any

from gpu.check import CAPPED, MIB, Finding, cap, check

CACHING_TEXT = "CUDA out of memory. Tried to allocate"
ASYNC_TEXT = "would exceed allowed memory"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
GPU = "cuda:0"
BLOCK = 256 * MIB


def _torch() -> Any:
    import torch  # noqa: PLC0415 - only in the children that need it

    return torch


def _fill(torch: Any) -> tuple[list[Any], str]:
    """Take memory until PyTorch says that there is none, and what it says."""
    held: list[Any] = []
    try:
        while True:
            held.append(torch.empty(BLOCK, dtype=torch.uint8, device=GPU))
    except torch.cuda.OutOfMemoryError as error:
        return held, str(error)


def _out_of_memory(text: str) -> Finding:
    torch = _torch()
    _, total = torch.cuda.mem_get_info()
    held, output = _fill(torch)
    got = len(held) * BLOCK
    held.clear()
    torch.cuda.empty_cache()
    again = torch.ones(BLOCK // 4, dtype=torch.float32, device=GPU).sum().item()
    measured = {
        "torch": torch.__version__,
        "backend": torch.cuda.get_allocator_backend(),
        "cap": total,
        "got": got,
        "says": output.splitlines()[0] if output else "",
    }
    # Contexts take up to 616 MiB; a little more goes to kernels.
    works = text in output and again == BLOCK // 4
    works = works and total == cap()
    return Finding(works and total - 1024 * MIB - BLOCK <= got <= total, measured)


@check("limits", CAPPED, torch=True)
def pytorch_says_out_of_memory_at_the_cap() -> Finding:
    """At the cap PyTorch's caching allocator raises torch.cuda.OutOfMemoryError.

    With PyTorch's own text; it goes on to work.
    """
    return _out_of_memory(CACHING_TEXT)


@check("limits", CAPPED, torch=True, environment=((ALLOCATOR, "expandable_segments:True"),))
def expandable_segments_stop_at_the_cap() -> Finding:
    """So does it with expandable segments, which map physical memory."""
    return _out_of_memory(CACHING_TEXT)


@check("limits", CAPPED, torch=True, environment=((ALLOCATOR, "backend:cudaMallocAsync"),))
def the_cuda_malloc_async_backend_stops_at_the_cap() -> Finding:
    """So does it with the backend cudaMallocAsync, which takes memory from the driver's pool."""
    return _out_of_memory(ASYNC_TEXT)


@check("limits", CAPPED, torch=True)
def pytorch_graphs_replay() -> Finding:
    """A CUDA graph that PyTorch captured replays with the right result."""
    torch = _torch()
    given = torch.zeros(1024, 1024, device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (given * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = given * 2 + 1
    sums = []
    for value in (1.0, 2.0):
        given.fill_(value)
        graph.replay()
        sums.append(result.double().mean().item())
    return Finding(sums == [3.0, 5.0], {"means": sums})


def _difference(one: Any, other: Any) -> float:
    return float((one.cpu().double() - other.double()).abs().max() / other.double().abs().max())


@check("limits", CAPPED, torch=True)
def cublas_multiplies() -> Finding:
    """A cuBLAS product equals the processor's within 1 %, in float32 and float16."""
    torch = _torch()
    torch.manual_seed(1)
    one, other = torch.randn(512, 512), torch.randn(512, 512)
    full = _difference(one.to(GPU) @ other.to(GPU), one @ other)
    half = _difference(one.to(GPU).half() @ other.to(GPU).half(), one @ other)
    return Finding(full < 0.01 and half < 0.01, {"float32": full, "float16": half})


@check("limits", CAPPED, torch=True)
def cudnn_convolves() -> Finding:
    """A cuDNN convolution, forward and backward, equals the processor's within 1 %."""
    torch = _torch()
    torch.manual_seed(1)
    layer, images = torch.nn.Conv2d(16, 32, 3, padding=1), torch.randn(8, 16, 64, 64)
    expected = layer(images)
    expected.square().mean().backward()
    slope = layer.weight.grad.clone()
    layer.zero_grad()
    layer.to(GPU)
    result = layer(images.to(GPU))
    result.square().mean().backward()
    errors = [
        _difference(result.detach(), expected.detach()),
        _difference(layer.weight.grad, slope),
    ]
    available = bool(torch.backends.cudnn.is_available())
    measured = {"cudnn": torch.backends.cudnn.version(), "errors": errors}
    return Finding(available and max(errors) < 0.01, measured)


def double(tensor: Any, done: Any) -> None:
    """What the other process of the next check does."""
    tensor.mul_(2)
    _torch().cuda.synchronize()
    done.set()


@check("limits", CAPPED, torch=True)
def tensors_pass_between_processes() -> Finding:
    """A tensor on the GPU is changed in place by another process (torch.multiprocessing).

    What the two hold together is shown.
    """
    torch = _torch()
    processes = torch.multiprocessing.get_context("spawn")
    tensor = torch.ones(BLOCK // 4, device=GPU)
    done = processes.Event()
    other = processes.Process(target=double, args=(tensor, done))
    other.start()
    finished = done.wait(120)
    other.join(120)
    value = tensor.double().mean().item()
    free, total = torch.cuda.mem_get_info()
    measured = {"mean": value, "exit code": other.exitcode, "used": total - free}
    return Finding(finished and value == 2.0 and other.exitcode == 0, measured)
