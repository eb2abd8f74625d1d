"""Whether pods pass through cgpu's runtime, by what an engine says of its runtimes. K8S-3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.kubelet import runtimes
from cgpu_k8s.kubelet.runtimes import (
    CONTAINERD,
    CRIO,
    NvidiaConfig,
    read_containerd,
    read_crio,
)
from cgpu_k8s.objects.fields import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

OURS, NVIDIA = "/usr/bin/cgpu-runtime", "/usr/bin/nvidia-container-runtime"
PASSED = ["cgpu/*", "ALIYUN_COM_GPU_*"]


def containerd(**programs: tuple[str, list[str] | None]) -> dict[str, Any]:
    """As containerd's CRI plugin shows it: program and annotations of each runtime."""
    return {
        "containerd": {
            "defaultRuntimeName": next(iter(programs)),
            "runtimes": {
                name: {
                    "runtimeType": "io.containerd.runc.v2",
                    "PodAnnotations": passed,
                    "options": {"BinaryName": program} if program else None,
                }
                for name, (program, passed) in programs.items()
            },
        }
    }


RUNC, CGPU = ("", None), (OURS, PASSED)


def reads(behind: list[str], path: str = runtimes.NVIDIA_CONFIG) -> Callable[[str], NvidiaConfig]:
    """A runtime of NVIDIA's whose configuration names these programs."""
    return lambda _: NvidiaConfig(path, behind)


@pytest.mark.parametrize(
    ("config", "behind", "sentence"),
    [
        (containerd(cgpu=CGPU, runc=RUNC), [], ""),
        (containerd(runc=RUNC, cgpu=CGPU), [], ""),  # by a RuntimeClass
        (containerd(runc=RUNC, kata=("/usr/bin/kata", None), cgpu=CGPU), [], ""),
        (containerd(runc=RUNC), [], "containerd has no runtime of cgpu's: run cgpu install"),
        (containerd(runc=RUNC, cgpu=(OURS, None)), [], "to the runtime cgpu, so no decision"),
        (containerd(runc=RUNC, cgpu=(OURS, ["x/*"])), [], "run cgpu install containerd on the"),
        (containerd(nvidia=(NVIDIA, None)), [], "the runtime nvidia of containerd is NVIDIA's"),
        (containerd(nvidia=(NVIDIA, None), cgpu=CGPU), ["runc"], "run cgpu install nvidia on"),
        (containerd(cgpu=CGPU, nvidia=(NVIDIA, None)), ["runc"], "so its pods would have whole"),
        (containerd(cgpu=CGPU, nv=(f"{NVIDIA}.cdi", None)), ["runc"], "the runtime nv of cont"),
        (containerd(cgpu=CGPU, nvidia=(NVIDIA, None)), [OURS, "runc"], "without cgpu's behind it"),
        (containerd(cgpu=CGPU, nvidia=(NVIDIA, None)), [OURS], ""),
        (containerd(nvidia=(NVIDIA, PASSED)), [OURS], ""),
        (containerd(nvidia=(NVIDIA, None)), [OURS], "pods on to the runtime nvidia, so no dec"),
    ],
)
def test_containerds_runtimes(config: dict[str, Any], behind: list[str], sentence: str) -> None:
    found = runtimes.find_problem(CONTAINERD, read_containerd(config), reads(behind))
    assert sentence in found if sentence else found == ""


@pytest.mark.parametrize(
    ("programs", "behind", "sentence"),
    [
        ({"crun": "/usr/bin/crun", "cgpu": OURS}, [], ""),
        ({"crun": "", "runc": None}, [], "of cgpu's: run cgpu install crio on the node"),
        ({"cgpu": OURS, "nvidia": NVIDIA}, ["crun"], "the runtime nvidia of cri-o is NVIDIA's"),
        ({"nvidia": NVIDIA}, ["/opt/cgpu/cgpu-runtime"], ""),
    ],
)
def test_crios_runtimes(programs: dict[str, str], behind: list[str], sentence: str) -> None:
    tables = {name: {"runtime_path": program} for name, program in programs.items()}
    config = {"crio": {"runtime": {"default_runtime": "x", "runtimes": tables}}}
    found = runtimes.find_problem(CRIO, read_crio(config), reads(behind))
    assert sentence in found if sentence else found == ""


def test_where_nvidias_operator_installed_its_runtime_the_operator_is_to_change_it() -> None:
    program = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    path = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    found = runtimes.find_problem(
        CONTAINERD, read_containerd(containerd(nvidia=(program, None))), reads(["runc"], path)
    )
    assert found.endswith(
        "set NVIDIA_CONTAINER_RUNTIME_RUNTIMES to the path of cgpu-runtime in toolkit.env of"
        f" NVIDIA's GPU Operator, by which it writes {path}"
    )


@pytest.mark.parametrize(
    "config", [{"containerd": []}, {"containerd": {"runtimes": {"cgpu": "x"}}}]
)
def test_what_no_engine_says_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ObjectError):
        read_containerd(config)
