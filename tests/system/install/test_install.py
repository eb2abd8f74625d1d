"""``cgpu install`` on a machine with real engines, which then make capped containers (CLI-1, 4)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cgpu_install import dockerd
from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.containers.engines import Bundle, Docker, Podman
from lab.machine.cri import CONTAINERD, IMAGE, Cri, served
from lab.machine.installed import Installed
from lab.machine.node import BIN, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.containers.engines import Volume

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    machine = Installed()
    yield machine
    machine.enclosure.stop()


@pytest.fixture(scope="module")
def docker(installed: Installed, debian_root: Path) -> Iterator[Docker]:
    engine = installed.docker(lambda: installed.cgpu("install", "docker"))
    engine.load("debian", debian_root)
    yield engine
    engine.stop()


def test_docker_runs_a_capped_container(docker: Docker, guests: list[Volume]) -> None:
    options = ["--runtime=cgpu"]
    shown = docker.run("debian", "nvidia-smi", options=options, env=share(6), volumes=guests)
    assert contained.memory_shown(shown) == [(0, 6043)]


def test_docker_shows_why_a_container_is_refused(docker: Docker) -> None:
    done = docker.run("debian", "true", options=["--runtime=cgpu"], env=share("six"), check=False)
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=six" in done.stderr


def test_docker_keeps_its_other_runtimes(docker: Docker) -> None:
    assert docker.run("debian", "echo", "ran", options=["--runtime=other"]).stdout == "ran\n"


def test_the_doctor_finds_programs_and_engine_in_order(
    docker: Docker, installed: Installed
) -> None:
    """With the very programs that engines start."""
    assert docker.configuration.exists()
    installed.cgpu("install", "docker")
    answer = json.loads(installed.cgpu("doctor", "--json", check=False).stdout)
    levels = {f["check"]: f["level"] for f in answer["findings"] if "docker" in f["value"]}
    assert levels == {"engines": "ok"}
    assert [f["level"] for f in answer["findings"] if f["check"] == "runtime"] == ["ok"]


def test_the_doctor_starts_the_python_side_as_an_engine_does(
    docker: Docker, installed: Installed
) -> None:
    """Where it fails, the interpreter beside the programs may not be one that cgpu is in."""
    assert docker.configuration.exists()
    inside = installed.enclosure
    inside.run("mount", "--bind", "/bin/false", BIN.parent / "precreate.py")
    try:
        done = installed.cgpu("doctor", "--json", check=False)
        [found] = [
            f
            for f in json.loads(done.stdout)["findings"]
            if (f["check"], f["level"]) == ("runtime", "error")
        ]
        assert "the Python side of /usr/bin/cgpu-hook fails" in found["what"]
        assert found["mend"].endswith("/_bin/interpreter")
    finally:
        inside.run("umount", BIN.parent / "precreate.py")


def test_the_doctor_tells_a_control_tree_without_its_server(installed: Installed) -> None:
    """Killed with 9, and then replaced by the next server's or taken away by hand."""
    inside = installed.enclosure
    installed.cgpu("get")
    look = ["cat", "/run/cgpu_km/version"]
    wait_until(lambda: inside.run(*look, check=False).returncode == 0, "the tree is mounted")
    pid = inside.run("cat", "/run/cgpu/cgpud.lock").stdout.strip()
    levels = _leftovers(installed)
    inside.run("kill", "-9", pid)
    wait_until(lambda: _leftovers(installed) != levels, "the server is gone")
    [found] = _leftovers(installed)
    assert (levels[0]["level"], found["mend"]) == ("ok", "umount -l /run/cgpu_km")
    inside.run("sh", "-c", found["mend"])
    assert _leftovers(installed) == levels


def _leftovers(installed: Installed) -> list[dict[str, str]]:
    done = installed.cgpu("doctor", "--json", check=False)
    return [f for f in json.loads(done.stdout)["findings"] if f["check"] == "leftovers"]


def test_now_runs_what_makes_engines_read_it_where_something_changed(
    installed: Installed,
) -> None:
    """An engine that does not run is no fault, but a command that fails is."""
    installed.write("/etc/docker/daemon.json", "{}")
    installed.write("/usr/local/bin/systemctl", '#!/bin/sh\necho "asked: $*"\n')
    installed.enclosure.run("chmod", "755", "/usr/local/bin/systemctl")
    output = installed.cgpu("install", "docker", "--now").stdout
    assert "asked" not in output
    assert f"systemd does not run here; to be done by you: {dockerd.SIGNAL}\n" in output
    installed.enclosure.run("mkdir", "-p", "/run/systemd/system")
    output = installed.cgpu("install", "docker", "--now").stdout
    assert "asked: try-reload-or-restart docker\n" in output
    assert "asked" not in installed.cgpu("install", "docker", "--now").stdout
    installed.cgpu("uninstall", "docker")
    installed.write("/usr/local/bin/systemctl", "#!/bin/sh\nexit 5\n")
    done = installed.cgpu("install", "docker", "--now", check=False)
    assert (done.returncode, "exit status 5" in done.stderr) == (2, True)
    installed.write("/usr/local/bin/systemctl", '#!/bin/sh\necho "asked: $*"\n')
    again = [installed.cgpu("install", "docker", "--now").stdout.split("\n", 1) for _ in range(2)]
    assert [first for first, _ in again] == ["nothing to change"] * 2
    assert ["asked" in rest for _, rest in again] == [True, False]
    installed.write("/usr/local/bin/systemctl", "#!/bin/sh\nexit 5\n")
    done = installed.cgpu("uninstall", "docker", "--now", check=False)
    assert (done.returncode, "exit status 5" in done.stderr) == (2, True)
    assert installed.read("/etc/docker/daemon.json") == "{}"
    installed.enclosure.run("rmdir", "/run/systemd/system")
    installed.cgpu("install", "docker")


def test_nothing_is_uninstalled_under_a_running_container(
    docker: Docker, installed: Installed
) -> None:
    """Its engine ends it through cgpu's programs."""
    name = docker.start("debian", "sleep", "1000", options=["--runtime=cgpu"], env=share(1))
    try:
        done = installed.cgpu("uninstall", check=False)
        assert done.returncode == 2
        assert f"stop them first: {name}" in done.stderr
    finally:
        docker.docker("rm", "--force", name)


def test_a_server_that_nobody_needs_ends_with_the_installation(debian_root: Path) -> None:
    """Its files may go next; a session keeps it. So may the proxies behind their overlay."""
    machine = Installed("uninstall")
    inside = machine.enclosure

    def living() -> list[object]:
        answer: dict[str, list[object]] = json.loads(machine.cgpu("get", "--json").stdout)
        return answer["containers"]

    def overlays() -> list[str]:
        return [point for point in inside.mounts() if point.startswith("/run/cgpu/lib/")]

    try:
        machine.cgpu("install", "podman", "nvidia")
        Bundle(inside, debian_root).run(["/usr/bin/cgpu-runtime"], "true", env=share(1))
        assert len(overlays()) == 2  # of libcuda.so.1 and libnvidia-ml.so.1
        wait = "until test -e /run/enough; do sleep 0.1; done"
        inside.start(Path(sys.executable).parent / "cgpu-run", "--mem=1/15", "--", "sh", "-c", wait)
        wait_until(living, "the session lives")
        pid = inside.run("cat", "/run/cgpu/cgpud.lock").stdout.strip()
        assert "cgpud (pid" not in machine.cgpu("uninstall", "podman").stdout
        note = f"note: cgpud (pid {pid}) goes on until these sessions end: run-"
        assert note in machine.cgpu("uninstall").stdout
        inside.run("touch", "/run/enough")
        wait_until(lambda: not living(), "the session has ended")
        assert f"note: cgpud (pid {pid}) has ended" in machine.cgpu("uninstall").stdout
        assert inside.run("test", "-d", f"/proc/{pid}", check=False).returncode == 1
        assert overlays() == []
        assert inside.run("test", "-e", "/run/cgpu/lib", check=False).returncode == 1
        assert machine.cgpu("uninstall").stdout == "nothing to change\n"
    finally:
        inside.stop()


@pytest.fixture(scope="module")
def podman(installed: Installed, debian_root: Path) -> Podman:
    """podman with no hooks but those of its default directory."""
    installed.enclosure.run("mkdir", "--parents", "/usr/share/containers/oci/hooks.d")
    engine = Podman(installed.enclosure, installed.base / "../../usr/share/containers/oci/hooks.d")
    engine.load("debian", debian_root)
    return engine


def test_podman_runs_a_capped_container_with_our_runtime(
    installed: Installed, podman: Podman, guests: list[Volume]
) -> None:
    installed.cgpu("install", "podman")
    options = ["--runtime", "cgpu"]
    shown = podman.run("debian", "nvidia-smi", options=options, env=share(6), volumes=guests)
    assert contained.memory_shown(shown) == [(0, 6043)]
    installed.cgpu("uninstall", "podman")
    assert podman.run("debian", "true", options=options, check=False).returncode != 0


def test_nothing_is_uninstalled_under_a_container_of_podmans(
    installed: Installed, podman: Podman
) -> None:
    """One that our runtime made without a share."""
    installed.cgpu("install", "podman")
    options = ["--runtime", "cgpu"]
    made = podman.run("debian", "sleep", "1000", options=options, detach=True).stdout.strip()
    try:
        done = installed.cgpu("uninstall", "podman", check=False)
        assert f"containers run with cgpu: stop them first: {made}\n" in done.stderr
    finally:
        podman.podman("rm", "--force", "--time=0", made, options=options)
    installed.cgpu("uninstall", "podman")


@pytest.mark.parametrize("engine", ["podman-hooks", "crio-hooks"])
def test_podman_runs_a_capped_container_with_our_hooks(
    installed: Installed, podman: Podman, guests: list[Volume], engine: str
) -> None:
    installed.cgpu("install", engine)
    shown = podman.run("debian", "nvidia-smi", env=share(6), volumes=guests)
    assert contained.memory_shown(shown) == [(0, 6043)]
    installed.cgpu("uninstall", engine)
    assert podman.run("debian", "nvidia-smi", volumes=guests, check=False).returncode != 0


@pytest.mark.parametrize(
    "case", ["debian-1.6", "kubeadm-v2", "nvidia-v2", "out-of-order-v2", "inline-v2"]
)
def test_containerd_reads_what_was_installed(
    installed: Installed, case: str, request: pytest.FixtureRequest
) -> None:
    golden = request.config.rootpath / "tests/unit/install/golden/containerd" / f"{case}.toml"
    installed.write(CONTAINERD, golden.read_text())
    installed.cgpu("install", "containerd")
    dump = installed.enclosure.run("containerd", "--config", CONTAINERD, "config", "dump").stdout
    table = "containerd.runtimes.cgpu.options]"
    assert 'BinaryName = "/usr/bin/cgpu-runtime"' in dump.partition(table)[2].partition("[")[0]
    installed.cgpu("uninstall", "containerd")
    assert installed.read(CONTAINERD) == golden.read_text()


@pytest.fixture
def cri(installed: Installed, docker: Docker) -> Iterator[Cri]:
    with served(installed, docker, "install", "containerd") as found:
        yield found


def test_containerd_runs_a_capped_container_of_a_pod(cri: Cri, guests: list[Volume]) -> None:
    """As a kubelet with a RuntimeClass asks for it; `runc` beside it is not touched."""
    env = share(6)
    shown = cri.run(IMAGE, "nvidia-smi", handler="cgpu", env=env, volumes=guests)
    assert "/  6043MiB" in shown
    assert cri.run(IMAGE, "ls", "/dev", handler="runc", env=env).find("cgpu") < 0
    with pytest.raises(grpc.RpcError, match="ALIYUN_COM_GPU_MEM_CONTAINER=six"):
        cri.run(IMAGE, "true", handler="cgpu", env=share("six"))
