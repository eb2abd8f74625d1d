"""Asks the node's container engine for the configuration that it has loaded, and checks it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import aiohttp
from grpclib.client import Channel

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.kubelet import runtimes
from cgpu_k8s.kubelet.protobuf import decode_text, decode_values
from cgpu_k8s.kubelet.rpc import BytesCodec, call_method
from cgpu_k8s.kubelet.runtimes import CONTAINERD, CRIO
from cgpu_k8s.objects.fields import get_member
from cgpu_node.facts.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cgpu_k8s.objects.fields import Json

    Judge = Callable[[str, Json, str], str]  # engine, its configuration, its root directory

# The sockets on which each engine listens for its kubelet, by the name that a kubelet reports.
SOCKETS = {row.version: row.sockets for row in ENGINES if row.version}
_RUNTIMES = "which runtimes the container engine has"
AGAIN = 60.0  # seconds after which an engine that has not restarted is asked again
_PATIENCE = 5.0  # seconds for an answer
# The CRI's method Status, and the encoded request with ``verbose`` set.
_STATUS, _VERBOSE = "/runtime.v1.RuntimeService/Status", b"\x08\x01"
_INFO, _KEY, _VALUE = 2, 1, 2  # field numbers of the answer's map ``info``, and of its entries
# The file that NVIDIA's runtime reads, beside its program, if NVIDIA's operator installed it.
_OPERATORS = f".config/{runtimes.NVIDIA}/config.toml"
_HOOKS, _NVIDIAS_HOOK = "*.json", "nvidia-container"  # -runtime-hook, -toolkit
_UCRED = struct.Struct("iII")


class ContainerRuntime:
    """The container engine of this node.

    Args:
        path: the path of its socket; None for the usual path of the engine that the node reports.
        judge: returns what is wrong with an engine's configuration, or "". The default checks that
            pods pass through cgpu's runtime.
        unknown: the subject of the sentence for an engine that does not answer.
    """

    def __init__(
        self, path: str | None = None, judge: Judge | None = None, unknown: str = _RUNTIMES
    ) -> None:
        self._path, self._judge, self._unknown = path, judge or _judge_runtimes, unknown
        self._asked: tuple[tuple[str, int, int], float] | None = None
        self._problem: str | None = None

    async def find_problem(self, node: Json) -> str:
        """Return what is wrong with the engine's configuration, or "".

        If the engine does not answer, the last result is returned.
        """
        try:
            name = _read_engine_name(node)
            paths = [self._path] if self._path else SOCKETS[name]
            await self._refresh_problem(name, next(filter(os.path.exists, paths), paths[-1]))
        except (CgpuError, OSError, ValueError, LookupError, asyncio.TimeoutError) as error:
            if self._problem is None:
                why = printable(str(error), 300) or f"no answer within {_PATIENCE:g} s"
                return f"{self._unknown} is not known: {why}"
        return self._problem or ""

    async def _refresh_problem(self, name: str, path: str) -> None:
        """Ask the engine if it has restarted, or was last asked more than AGAIN seconds ago."""
        facts = Path(path).stat()  # noqa: ASYNC240 (a socket in /run)
        here = path, facts.st_ino, facts.st_ctime_ns
        now = time.monotonic()
        if self._asked and self._asked[0] == here and now - self._asked[1] < AGAIN:
            return
        config = await asyncio.wait_for(_READERS[name](path), _PATIENCE)
        self._problem = self._judge(name, config, _find_root(path))
        self._asked = here, now


def _read_engine_name(node: Json) -> str:
    """Return the name of the engine that the node's kubelet reports.

    Raises:
        CgpuError: it is not one of ``SOCKETS``.
    """
    status = get_member(node, "status", dict)
    version = get_member(get_member(status, "nodeInfo", dict), "containerRuntimeVersion", str)
    name = version.partition(":")[0]
    if name not in SOCKETS:
        sentence = f"containerRuntimeVersion={printable(version)}: expected {' or '.join(SOCKETS)}"
        raise CgpuError(sentence)
    return name


def find_nvidias_hook(name: str, config: Json, root: str) -> str:
    """Return a sentence about a hook of NVIDIA's in CRI-O, or "".

    Raises:
        ObjectError: ``config`` is no such configuration.
    """
    about = get_member(get_member(config, "crio", dict), "runtime", dict)
    folders = get_member(about, "hooks_dir", list) if name == CRIO else []
    for path in (
        path for folder in folders for path in sorted(Path(f"{root}{folder}").glob(_HOOKS))
    ):
        try:
            program = json.loads(path.read_bytes())["hook"]["path"]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # CRI-O does not start it
        if PurePath(str(program)).name.startswith(_NVIDIAS_HOOK):
            return (
                f"the hook {printable(str(path).removeprefix(root))} of {name} is NVIDIA's, so any"
                " pod could have whole GPUs: remove it, or what installs it"
            )
    return ""


def _judge_runtimes(name: str, config: Json, root: str) -> str:
    """Return why pods may not pass through cgpu's runtime, or ""."""
    return runtimes.find_problem(
        name,
        runtimes.READERS[name](config),
        lambda program: _read_nvidia_config(root, program),
    )


async def _query_containerd(path: str) -> Json:
    try:
        async with Channel(path=path, codec=BytesCodec()) as channel:
            answer = await call_method(channel, _STATUS, _VERBOSE)
    except CgpuError as error:
        raise CgpuError(f"{path}: {error}") from None
    info = {decode_text(each, _KEY): each for each in decode_values(answer, _INFO)}
    if "config" not in info:
        raise CgpuError(f"{path}: its Status does not show its configuration")
    found: dict[str, Any] = json.loads(decode_text(info["config"], _VALUE))
    return found


async def _query_crio(path: str) -> Json:
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
            session.get("http://crio/config", raise_for_status=True) as answer,
        ):
            return _parse_toml(await answer.text())
    except aiohttp.ClientError as error:  # some are not OSErrors
        raise CgpuError(f"{path}: {printable(str(error), 300)}") from None


_READERS: Mapping[str, Callable[[str], Awaitable[Json]]] = {
    CONTAINERD: _query_containerd,
    CRIO: _query_crio,
}


def _find_root(path: str) -> str:
    """Return a path to the root directory of the process that listens at a socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        ours = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid: int = _UCRED.unpack(ours)[0]
    return f"/proc/{pid}/root"


def _read_nvidia_config(root: str, program: str) -> runtimes.NvidiaConfig:
    """Return the configuration of NVIDIA's runtime ``program``."""
    for path in (f"{Path(program).parent}/{_OPERATORS}", runtimes.NVIDIA_CONFIG):
        try:
            content = _parse_toml(Path(f"{root}{path}").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        found = get_member(content, "nvidia-container-runtime", dict).get("runtimes", [])
        listed = [str(each) for each in found] if isinstance(found, list) else []
        return runtimes.NvidiaConfig(path, listed)
    return runtimes.NvidiaConfig(runtimes.NVIDIA_CONFIG, ())


def _parse_toml(content: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 (few nodes need it)
    else:
        import tomli as tomllib  # noqa: PLC0415
    found: dict[str, Any] = tomllib.loads(content)
    return found
