"""Environments of containers, and what they ask for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import cgpu_env
from cgpu_env import EnvError, Gpu, Request
from cgpu_env import request as request_module

MIB = 1 << 20
T4 = Gpu(0, "GPU-aaaa1111-0000-0000-0000-000000000000", 15109 * MIB)
P100 = Gpu(1, "GPU-aaaa2222-0000-0000-0000-000000000000", 16160 * MIB)
THIRD = Gpu(2, "GPU-bbbb0000-0000-0000-0000-000000000000", 15109 * MIB)
FOURTH = Gpu(3, "GPU-1b0c0000-0000-0000-0000-000000000000", 15109 * MIB)
FOUR = (T4, P100, THIRD, FOURTH)
SHORT = {
    "mem": "ALIYUN_COM_GPU_MEM_CONTAINER",
    "dev": "ALIYUN_COM_GPU_MEM_DEV",
    "visible": "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    "weight": "ALIYUN_COM_GPU_SCHD_WEIGHT",
    "prio": "ALIYUN_COM_GPU_HIGH_PRIO",
    "disable": "CGPU_DISABLE",
    "nvidia": "NVIDIA_VISIBLE_DEVICES",
}


def env(**values: str) -> dict[str, str]:
    """The variables that these values are of."""
    return {SHORT[name]: value for name, value in values.items()}


def parse_request(
    given: dict[str, str],
    gpus: Sequence[Gpu],
    *,
    default_memsize: int | str = 0,
    has_units: bool = False,
) -> Request | None:
    """What is asked for, without the variables that it was made from."""
    found = cgpu_env.parse_request(
        given, gpus, default_memsize=default_memsize, has_units=has_units
    )
    return None if found is None else found._replace(asked=None)


def is_asked(given: dict[str, str], default_memsize: int | str = 0) -> bool:
    """Whether cgpu is on, as far as that shows without the node's GPUs."""
    return request_module.parse_variables(given, lambda: default_memsize) is not None


def parse(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> Request | None:
    """What they ask for."""
    return parse_request(env(**values), gpus)


def caps(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> list[int]:
    """The caps that they ask for, in bytes."""
    request = parse(gpus, **values)
    assert request is not None
    return [share.cap_bytes for share in request.gpus]


def order(**values: str) -> list[int]:
    """The GPUs that they name."""
    request = parse(mem="1", dev="15", **values)
    assert request is not None
    return [share.index for share in request.gpus]


def refusal(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> str:
    """The sentence that refuses them."""
    with pytest.raises(EnvError) as caught:
        parse(gpus, **values)
    message = str(caught.value)
    assert message.isprintable()
    assert caught.value.exit_code == 2
    return message
