"""A simulated NVIDIA driver for machines without a GPU: libcuda.so.1 and libnvidia-ml.so.1.

``make_driver_dir`` writes a *driver directory*: the two libraries, the machine that they share and
one file per GPU that stands for its device node. Programs use it through ``LD_LIBRARY_PATH``,
``cgpu-run --driver-dir`` or a container into which it is mounted.
"""

from __future__ import annotations

from cgpu_sim.directory import make_driver_dir
from cgpu_sim.machine import TESLA_T4, Fault, Gpu, GpuTime, gpu_times, inject, lose

__all__ = [
    "TESLA_T4",
    "Fault",
    "Gpu",
    "GpuTime",
    "gpu_times",
    "inject",
    "lose",
    "make_driver_dir",
]
