"""The main case: docker containers that share a GPU, with programs that nobody here wrote."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.machine.node import share

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.containers.engines import Docker, Result, Volume
    from lab.machine.node import Node

pytestmark = pytest.mark.system
CGPU = ["--runtime=cgpu"]
MIB = 1 << 20
CAP = 15109 * MIB * 6 // 15


@pytest.fixture
def run(docker: Docker, debian: str, guests: list[Volume]) -> Callable[..., Result]:
    def run_capped(*command: str, options: list[str] = CGPU, **env: str) -> Result:
        variables = {**share(6), **env}
        return docker.run(debian, *command, options=options, env=variables, volumes=guests)

    return run_capped


def test_nvidia_smi_shows_the_share_as_the_whole(run: Callable[..., Result]) -> None:
    """CLI-1, ENV-8, MEM-4."""
    assert contained.memory_shown(run("nvidia-smi")) == [(0, 6043)]


def test_the_runtime_also_drives_crun(run: Callable[..., Result]) -> None:
    shown = run("nvidia-smi", options=["--runtime=cgpu-crun"])
    assert contained.memory_shown(shown) == [(0, 6043)]


def test_gpustat_shows_the_share(run: Callable[..., Result]) -> None:
    """MEM-4."""
    gpus = json.loads(run("python3", "-m", "gpustat", "--json").stdout)["gpus"]
    assert [(gpu["memory.used"], gpu["memory.total"]) for gpu in gpus] == [(0, 6043)]


def test_nvitop_shows_the_share(run: Callable[..., Result]) -> None:
    """MEM-4: nvitop rounds 6043.6 MiB up, nvidia-smi cuts it."""
    assert "0B / 6044MiB" in run("python3", "-m", "nvitop", "--once", "--ascii").stdout


def test_a_cuda_bindings_program_is_refused_at_the_cap(run: Callable[..., Result]) -> None:
    """MEM-1, MEM-2, MEM-4: the driver's own refusal, and all memory up to it is had."""
    report = json.loads(run(*contained.program("driver_api", "1")).stdout)
    assert report["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert report["total"] == report["seen"] == CAP
    assert report["free_before"] - MIB < report["taken"] <= report["free_before"]
    assert report["free_after"] == report["free_before"] - report["taken"]


def test_a_numba_program_is_refused_at_the_cap(run: Callable[..., Result]) -> None:
    """MEM-1, MEM-2: Numba launches a kernel and prints its own out-of-memory text."""
    report = json.loads(run(*contained.program("numba_arrays")).stdout)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in report["refusal"]
    assert report["total"] == CAP
    assert report["taken"] <= report["free"] < report["taken"] + 2 * 256 * MIB


@pytest.mark.parametrize(
    "command",
    [
        ["env", "-i", "/usr/bin/nvidia-smi"],
        ["su", "user", "-c", "nvidia-smi"],
        ["env", "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib", "nvidia-smi"],
        ["sh", "-c", "cd /tmp && chroot / env -i /usr/bin/nvidia-smi"],
    ],
    ids=["cleared environment", "another user", "library path", "chroot"],
)
def test_the_cap_holds_however_a_program_is_started(
    run: Callable[..., Result], command: list[str]
) -> None:
    """REL-6."""
    assert contained.memory_shown(run(*command)) == [(0, 6043)]


@pytest.mark.parametrize(
    "path", ["libcuda.so.1", "libcuda.so", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
)
def test_the_cap_holds_for_the_library_by_name_and_by_path(
    run: Callable[..., Result], path: str
) -> None:
    """REL-6."""
    script = (
        "import ctypes; cuda = ctypes.CDLL({0!r}); total = ctypes.c_size_t(); cuda.cuInit(0); "
        "cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0); print(total.value)"
    )
    assert int(run("python3", "-c", script.format(path)).stdout) == CAP


def test_the_cap_holds_for_a_container_user_without_rights(run: Callable[..., Result]) -> None:
    """REL-6, MEM-2."""
    options = [*CGPU, "--user=1000:1000", "--cap-drop=ALL"]
    report = json.loads(run(*contained.program("driver_api", "64"), options=options).stdout)
    assert (report["total"], report["refusal"]) == (CAP, "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize("program", ["musl-static", "musl-dynamic", "true"])
def test_programs_of_another_libc_run_in_a_capped_container(docker: Docker, program: str) -> None:
    """REL-6: static and musl programs are left alone."""
    docker.run("small", program, options=CGPU, env=share(6))


def test_docker_exec_sees_the_same_cap_and_use(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """REL-6, MEM-4."""
    hold = contained.program("driver_api", "100", "hold")
    name = started(debian, *hold, options=CGPU, env=share(6), volumes=guests)
    wait_until(lambda: "refusal" in docker.docker("logs", name).stdout, "the program holds memory")
    report = json.loads(docker.docker("logs", name).stdout)
    [(used, total)] = contained.memory_shown(docker.docker("exec", name, "nvidia-smi"))
    assert total == 6043
    assert used == pytest.approx((CAP - report["free_after"]) / MIB, abs=1)


def test_two_containers_share_a_gpu_and_do_not_disturb_each_other(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """CLI-1, MEM-1, REL-5: 6 and 9 of 15 fill a T4; one at its cap leaves the other its own."""
    hold = contained.program("driver_api", "10", "hold")
    env = share(6)
    first = started(debian, *hold, options=CGPU, env=env, volumes=guests)
    wait_until(lambda: "refusal" in docker.docker("logs", first).stdout, "the first is at its cap")
    env = share(9)
    second = docker.run(
        debian, *contained.program("driver_api", "10"), options=CGPU, env=env, volumes=guests
    )
    report = json.loads(second.stdout)
    assert report["total"] == 15109 * MIB * 9 // 15
    assert report["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert report["taken"] > report["free_before"] - 10 * MIB
    [(used, total)] = contained.memory_shown(docker.docker("exec", first, "nvidia-smi"))
    assert (used > 5900, total) == (True, 6043)


def test_a_container_sees_the_gpus_it_names_with_caps_in_its_order(
    run: Callable[..., Result],
) -> None:
    """ENV-3, ENV-5, ENV-8, MEM-5."""
    options = ["--runtime=cgpu-four"]
    shown = run(
        "nvidia-smi",
        options=options,
        ALIYUN_COM_GPU_VISIBLE_DEVICES="2,0",
        ALIYUN_COM_GPU_MEM_CONTAINER="2,6",
    )
    assert sorted(total for _, total in contained.memory_shown(shown)) == [2154, 6043]


def test_one_value_holds_for_all_gpus(run: Callable[..., Result]) -> None:
    """ENV-3."""
    shown = run("nvidia-smi", options=["--runtime=cgpu-four"], ALIYUN_COM_GPU_MEM_CONTAINER="3,1")
    assert [total for _, total in contained.memory_shown(shown)] == [3021, 1007, 1077, 1007]


def test_a_container_can_be_restarted(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str], node: Node
) -> None:
    """REL-3: the same id is admitted again with the whole GPU, so its first share came back."""
    env = share(15)
    name = started(debian, "sleep", "1000", options=CGPU, env=env, volumes=guests)
    docker.docker("restart", "--time=0", name)
    [(_, total)] = contained.memory_shown(docker.docker("exec", name, "nvidia-smi"))
    assert total == 15109
    assert node.containers() == [name]


@pytest.mark.parametrize(
    "options",
    [
        ["--read-only"],
        ["--init"],
        ["--pid=host"],
        ["--ipc=host"],
        ["--security-opt=no-new-privileges", "--cap-drop=ALL"],
        ["--tmpfs=/run", "--workdir=/tmp"],
        ["--env=LD_PRELOAD=", "--env=CUDA_VISIBLE_DEVICES=0", "--env=NVIDIA_VISIBLE_DEVICES=all"],
    ],
    ids=" ".join,
)
def test_the_cap_holds_with_the_options_of_docker_run(
    run: Callable[..., Result], options: list[str]
) -> None:
    """CLI-1, MEM-2."""
    options = [*CGPU, *options]
    report = json.loads(run(*contained.program("driver_api", "64"), options=options).stdout)
    assert (report["total"], report["refusal"]) == (CAP, "CUDA_ERROR_OUT_OF_MEMORY")


def test_the_processes_of_a_container_share_its_cap(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """MEM-1, MEM-6: four programs race; together they get all of the cap, and not a byte more."""
    hold = " ".join(contained.program("driver_api", "16", "hold", "4"))
    script = f"for i in 1 2 3 4; do {hold} & done; wait"
    name = started(debian, "sh", "-c", script, options=CGPU, env=share(6), volumes=guests)

    def reports() -> list[dict[str, Any]]:
        return [json.loads(line) for line in docker.docker("logs", name).stdout.splitlines()]

    wait_until(lambda: len(reports()) == 4, "all four are at the cap")
    assert {report["refusal"] for report in reports()} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    [(used, total)] = contained.memory_shown(docker.docker("exec", name, "nvidia-smi"))
    assert total - 17 < used <= total
    assert sum(report["taken"] for report in reports()) <= used * MIB


def test_a_program_killed_in_a_container_gives_its_memory_back(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """MEM-7."""
    script = (
        "trap : TERM; " + " ".join(contained.program("driver_api", "64", "hold")) + "; sleep 99"
    )
    name = started(debian, "sh", "-c", script, options=CGPU, env=share(6), volumes=guests)
    wait_until(lambda: "refusal" in docker.docker("logs", name).stdout, "the program holds memory")
    docker.docker("exec", name, "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")

    def shown() -> list[tuple[int, int]]:
        return contained.memory_shown(docker.docker("exec", name, "nvidia-smi"))

    wait_until(lambda: shown() == [(0, 6043)], "the memory is given back")


def test_an_image_committed_from_a_capped_container_works(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """CLI-1: what the mounts leave in the image's upper layer is no obstacle."""
    name = started(debian, "true", options=CGPU, env=share(6), volumes=guests)
    docker.docker("wait", name)
    docker.docker("commit", name, "committed")
    again = docker.run("committed", "nvidia-smi", options=CGPU, env=share(6), volumes=guests)
    assert contained.memory_shown(again) == [(0, 6043)]


def _without_names(text: str) -> str:
    return re.sub(r"[0-9a-f]{12,}|/l/[A-Z0-9]+|\b\d+\b", "X", text)


@pytest.mark.parametrize("env", [{}, {"CGPU_DISABLE": "true"} | share(6), share(0)])
def test_a_container_without_a_cap_is_what_runc_makes(docker: Docker, env: dict[str, str]) -> None:
    """ENV-1, ENV-4: the same mounts, devices, limits and environment."""
    look = "cat /proc/self/mountinfo /proc/self/limits; ls -lR /dev; env | sort; id; ls -la /"
    command = ["sh", "-c", look]
    options = ["--hostname=same"]
    plain = docker.run("small", *command, options=options, env=env).stdout
    ours = docker.run("small", *command, options=[*options, *CGPU], env=env).stdout
    assert _without_names(ours) == _without_names(plain)
