"""The readers of foreign bytes in Python: whatever they are given, they read it or refuse it.

``readers.py TARGET`` takes the words of ``driver.c``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import cgpu_native
from cgpu_env import CgpuError, EnvError, Gpu, parse_request
from cgpu_env.request import parse_environment
from cgpu_env.values import describe_slip, parse_size
from cgpu_hook import document
from cgpu_install.engines import select_engines
from cgpu_install.machine import Machine
from cgpu_native.limits import pack_limits, unpack_limits
from cgpu_node import allocation_annotation, jsontext
from cgpu_node.image import ldcache
from cgpu_node.shares import record
from fuzz import mutator
from fuzz.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Callable

GPUS = [Gpu(i, f"GPU-{i:08x}-0000-4000-8000-000000000000", (i + 1) << 34) for i in range(3)]

PAGE = len(pack_limits("", []))


def config(data: bytes) -> None:
    """A container's ``config.json``, and its variables (REL-4)."""
    try:
        read = document.parse(data, "config.json")
        env = parse_environment((read.get("process") or {}).get("env") or ())
        parse_request(env, GPUS)
    except CgpuError as error:
        _check(error)


def variables(data: bytes) -> None:
    """An environment, a variable on each line, as of a container and as typed (ENV-9)."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    env = parse_environment(lines)
    for has_units, default in product((False, True), (0, "6/15")):
        _ask(env, default, has_units=has_units)
    for line in lines:
        parse_size(line)
        describe_slip(line)


def _ask(env: dict[str, str], default: int | str, *, has_units: bool) -> None:
    try:
        request = parse_request(env, GPUS, default_memsize=default, has_units=has_units)
    except EnvError as error:
        _check(error)
    else:
        assert request is None or all(gpu.cap_bytes > 0 for gpu in request.gpus)


def decisions(data: bytes) -> None:
    """A pod's annotation, which means the same when it is written again (K8S-11)."""
    try:
        found = allocation_annotation.parse_annotation(data.decode("utf-8", "surrogateescape"))
    except CgpuError as error:
        _check(error)
    else:
        assert (
            allocation_annotation.parse_annotation(allocation_annotation.format_annotation(found))
            == found
        )


def text(data: bytes) -> None:
    """JSON, which means what the standard library says it means."""
    try:
        written = data.decode()
        value = jsontext.loads(written)
    except ValueError:
        return
    assert repr(json.loads(written)) == repr(value)


def engine(name: str, data: bytes) -> None:
    """An engine's configuration, into which cgpu comes, and out of which it goes again."""
    [file, *_] = select_engines([name])[0].files(Machine("/nonexistent"))
    try:
        before = data.decode()
        after = file.add(before, file.program)
    except UnicodeDecodeError:
        return
    except CgpuError as error:
        _check(error)
        return
    assert file.add(after, file.program) == after
    file.take(after, file.program)
    if file.default is not None:
        try:
            file.default.restore(file.default.set_runtime(after), "runc")
        except CgpuError as error:
            _check(error)


def request(data: bytes) -> None:
    """A line to the server's control socket."""
    _server().ask(data)


def page(data: bytes) -> None:
    """A limits page; most that are made of one are too long or too short: these fit."""
    for whole in (data, data.ljust(PAGE, b"\0")[:PAGE]):
        with contextlib.suppress(cgpu_native.FormatError):
            unpack_limits(whole)


def records(data: bytes) -> None:
    """What the host remembers of a container."""
    (_folder() / record.FILE).write_bytes(data)
    record.read(str(_folder()))


def cache(data: bytes) -> None:
    """The cache of an image's loader (REL-4)."""
    assert all(
        path.startswith("/") for path in ldcache.find_by_stems(data, ("libcuda.so", "libnvidia-ml"))
    )


@functools.cache
def _server() -> Asked:
    return Asked()


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp())


def _check(error: CgpuError) -> None:
    assert str(error).isprintable(), error


TARGETS: dict[str, Callable[[bytes], None]] = {
    "config": config,
    "variables": variables,
    "text": text,
    "decision": decisions,
    "request": request,
    "page": page,
    "record": records,
    "cache": cache,
    **{
        name: functools.partial(engine, name)
        for name in ("docker", "podman-hooks", "containerd", "crio", "podman", "nvidia")
    },
}


if __name__ == "__main__":
    sys.exit(mutator.main(TARGETS[sys.argv[1]], *sys.argv[2:]))
