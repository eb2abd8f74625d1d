"""Finds out from an engine's configuration whether pods pass through cgpu's runtime; pure.

NVIDIA's runtime gives a pod the GPUs that the pod's variables name. So each runtime of NVIDIA's in
the engine must start cgpu's runtime. Otherwise pods that ask for a part of a GPU could get whole
GPUs.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.names import ALLOCATION
from cgpu_k8s.objects.fields import get_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cgpu_k8s.objects.fields import Json

CONTAINERD, CRIO = "containerd", "cri-o"
OURS, NVIDIA = "cgpu-runtime", "nvidia-container-runtime"
NVIDIA_CONFIG = f"/etc/{NVIDIA}/config.toml"
# cgpu install does not change CRI-O's default runtime.
_INSTALL = {CONTAINERD: "cgpu install containerd --default", CRIO: "cgpu install crio"}
_PASSING = f"{ALLOCATION.partition('/')[0]}/*"


class Runtime(NamedTuple):
    """A runtime of an engine.

    Attributes:
        name: the name by which pods choose it.
        program: the path of its program, or "" for one that gives no container a GPU, such as runc.
        passes: whether the engine passes the pod's decision on to it.
    """

    name: str
    program: str
    passes: bool


def read_containerd(config: Json) -> list[Runtime]:
    """Return the runtimes in the configuration that containerd's CRI plugin shows.

    Raises:
        ObjectError: ``config`` is not such a configuration.
    """
    found = []
    runtimes = get_member(get_member(config, "containerd", dict), "runtimes", dict)
    for name in runtimes:
        about = get_member(runtimes, name, dict)
        passed = about.get("PodAnnotations") or []
        options = about.get("options") or {}
        program = options.get("BinaryName", "") if isinstance(options, dict) else ""
        passes = isinstance(passed, list) and bool({_PASSING, ALLOCATION} & set(map(str, passed)))
        found.append(Runtime(name, str(program), passes))
    return found


def read_crio(config: Json) -> list[Runtime]:
    """Return the runtimes in CRI-O's configuration. CRI-O passes all annotations of a pod on.

    Raises:
        ObjectError: ``config`` is not such a configuration.
    """
    about = get_member(get_member(config, "crio", dict), "runtime", dict)
    runtimes = get_member(about, "runtimes", dict)
    return [
        Runtime(
            name, get_member(get_member(runtimes, name, dict), "runtime_path", str), passes=True
        )
        for name in runtimes
    ]


READERS: Mapping[str, Callable[[Json], list[Runtime]]] = {
    CONTAINERD: read_containerd,
    CRIO: read_crio,
}


class NvidiaConfig(NamedTuple):
    """The file that a runtime of NVIDIA's reads, and the programs that it may start by it."""

    path: str
    runtimes: Sequence[str]


def find_problem(
    engine: str, runtimes: Iterable[Runtime], read_config: Callable[[str], NvidiaConfig]
) -> str:
    """Return why pods may not pass through cgpu's runtime, or "".

    Args:
        engine: CONTAINERD or CRIO.
        runtimes: all runtimes of the engine.
        read_config: returns the configuration of a runtime of NVIDIA's by its program.
    """
    ours = []
    for each in runtimes:
        name = PurePath(each.program).name
        is_nvidia = name.startswith(NVIDIA)
        found = read_config(each.program) if is_nvidia else None
        if found and {PurePath(program).name for program in found.runtimes} != {OURS}:
            return (
                f"the runtime {each.name} of {engine} is NVIDIA's, without cgpu's behind it, so its"
                f" pods would have whole GPUs: {_advise(found.path)}"
            )
        if is_nvidia or name == OURS:
            ours.append(each)
    if not ours:
        return f"{engine} has no runtime of cgpu's: run {_INSTALL[engine]} on the node"
    if not any(each.passes for each in ours):
        listed = ", ".join(sorted(each.name for each in ours))
        return (
            f"{engine} does not pass annotations of pods on to the runtime {listed}, so no decision"
            f" reaches it: run cgpu install {engine} on the node"
        )
    return ""


def _advise(path: str) -> str:
    """Return how NVIDIA's runtime comes to start cgpu's, by the file that it reads."""
    if path == NVIDIA_CONFIG:
        return "run cgpu install nvidia on the node"
    return (
        "set NVIDIA_CONTAINER_RUNTIME_RUNTIMES to the path of cgpu-runtime in toolkit.env of"
        f" NVIDIA's GPU Operator, by which it writes {path}"
    )
