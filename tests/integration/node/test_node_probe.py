"""The probe of a real driver's libraries, and of those that hang, crash or lie."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_node.facts import discovery
from cgpu_node.facts.driver import PROXIED
from cgpu_node.facts.node import DeviceNode, Node, load_node
from cgpu_node.settings.config import Config
from cgpu_sim import Fault, Gpu, inject, lose, make_driver_dir
from lab.machine.hostile_files import Hostile

pytestmark = pytest.mark.integration

MIB = 1 << 20


def probe(driver: Path, state: Path) -> Node:
    return load_node(str(state), str(driver), config=Config())


def break_library(driver: Path, soname: str, body: str) -> None:
    """Put a library in the driver's place whose first function does ``body``."""
    function = "nvmlInit_v2" if "ml" in soname else "cuInit"
    source = driver / "broken.c"
    source.write_text(
        f"#include <fcntl.h>\n#include <unistd.h>\nint {function}(void) {{ {body} }}\n"
    )
    command = ["gcc", "-shared", "-fPIC", "-o", driver / soname, source]
    subprocess.run(command, check=True)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    gpus = [Gpu("Tesla T4", 15109), Gpu("Tesla P100", 16160)]
    return make_driver_dir(tmp_path / "driver", gpus)


def test_the_facts_are_the_drivers(driver: Path, tmp_path: Path) -> None:
    node = probe(driver, tmp_path)
    assert [(gpu.index, gpu.name, gpu.total_bytes // MIB) for gpu in node.gpus] == [
        (0, "Tesla T4", 15109),
        (1, "Tesla P100", 16160),
    ]
    assert node.driver_version == "550.163.01"
    assert all(gpu.context_bytes > 50 * MIB for gpu in node.gpus)
    assert node.device_nodes == (DeviceNode(f"{driver}/machine", "/dev/cgpu-sim/machine"),)
    assert node.gpus[1].device_nodes == (DeviceNode(f"{driver}/gpu1", "/dev/cgpu-sim/gpu1"),)
    assert set(node.libraries.values()) == {
        f"{driver}/libcuda.so.1",
        f"{driver}/libnvidia-ml.so.1",
    }


def test_a_gpu_in_mig_mode_is_said_to_be(tmp_path: Path) -> None:
    """Older ones have no such mode, and newer ones have it off."""
    ampere = Gpu("NVIDIA A100", 40960, capability=(8, 0))
    driver = make_driver_dir(tmp_path / "mig", [Gpu(), ampere, ampere._replace(mig=True)])
    for _ in range(2):  # asked, and then from the file
        node = probe(driver, tmp_path)
        assert [gpu.in_mig_mode for gpu in node.gpus] == [False, False, True]


def test_a_probe_that_stays_loads_no_module_that_it_can_do_without(driver: Path) -> None:
    probe = Path(discovery.__file__).with_name("probe.py")
    command = [sys.executable, "-I", "-S", "-X", "importtime", probe, "gpus", driver]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=True)
    assert '"name":"Tesla P100"' in done.stdout
    assert not {"re", "json", "typing"} & {line.split()[-1] for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("for (;;) pause();", "no answer within 1 s"),
        ("*(volatile int *)0 = 1; return 0;", "it died by signal"),
        ("return 9;", "nvmlInit_v2: error 9"),
    ],
)
def test_a_broken_nvml_is_one_sentence(
    driver: Path, tmp_path: Path, body: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hangs or crashes takes the probe along, not us."""
    monkeypatch.setattr(discovery, "TIME_LIMIT_SECONDS", 1)
    break_library(driver, "libnvidia-ml.so.1", body)
    with pytest.raises(CgpuError) as refusal:
        probe(driver, tmp_path)
    assert str(refusal.value).startswith(f"the NVIDIA driver in {driver} does not answer: {reason}")


@pytest.mark.parametrize("soname", PROXIED)
def test_rel_7_nobody_waits_for_a_lease_on_a_library_of_the_driver(
    driver: Path, tmp_path: Path, soname: str
) -> None:
    """REL-7: root in a container has the file, and owns it."""
    with Hostile("lease", driver / soname) as hostile:
        with pytest.raises(CgpuError, match=rf"{soname}: a process holds a lease on it"):
            probe(driver, tmp_path)
        with pytest.raises(CgpuError, match=rf"{soname}: a process holds a lease on it"):
            discovery.start_probe("holdings", str(driver), subprocess.DEVNULL)
        assert hostile.holds_leases(), "one of them has waited for it"


def test_rel_7_while_a_probe_runs_no_lease_on_its_driver_is_to_be_had(driver: Path) -> None:
    with discovery.start_probe("holdings", str(driver), subprocess.PIPE) as running:
        for soname in PROXIED:
            fd = os.open(driver / soname, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.close(fd)
        running.communicate(timeout=30)


@pytest.mark.parametrize("theirs", ["driver", "driver/libcuda.so.1", "driver/libnvidia-ml.so.1"])
def test_rel_4_root_loads_no_driver_that_a_user_could_change(
    driver: Path, tmp_path: Path, theirs: str
) -> None:
    """Not through a link of root's either."""
    mark = tmp_path / "loaded"
    for soname in PROXIED:
        break_library(driver, soname, f'return creat("{mark}", 0600);')
    os.chown(tmp_path / theirs, 1000, 1000)
    (tmp_path / "link").symlink_to(driver)
    for named in (driver, tmp_path / "link"):
        with pytest.raises(CgpuError, match=f"^{tmp_path / theirs}: others could change"):
            probe(named, tmp_path)
    for what in ("facts", "contexts", "holdings", "gpus"):
        with pytest.raises(CgpuError, match="others could change"):
            discovery.start_probe(what, str(driver), subprocess.DEVNULL)
    assert not mark.exists()


@pytest.mark.parametrize("body", ["for (;;) pause();", "*(volatile int *)0 = 1; return 0;"])
def test_a_broken_cuda_costs_the_context_figure_only(
    driver: Path, tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "TIME_LIMIT_SECONDS", 1)
    break_library(driver, "libcuda.so.1", body)
    node = probe(driver, tmp_path)
    assert [gpu.context_bytes for gpu in node.gpus] == [0, 0]
    assert len(node.notes) == 1


def test_the_order_is_that_of_cuda_and_the_indices_are_those_of_nvml(tmp_path: Path) -> None:
    """ENV-5: on GPUs of different models these differ."""
    gpus = [Gpu("Tesla T4"), Gpu("L40S", sm_count=142), Gpu("A10", sm_count=72)]
    node = probe(make_driver_dir(tmp_path / "driver", gpus), tmp_path)
    named = {gpu.uuid: gpu.name for gpu in node.gpus}
    assert [*named.values()] == ["Tesla T4", "L40S", "A10"]
    assert [named[uuid] for uuid in node.cuda_order] == ["L40S", "A10", "Tesla T4"]


def test_a_context_that_fails_changes_no_order(driver: Path, tmp_path: Path) -> None:
    """ENV-13: as on a GPU whose memory is full, or that another process has for itself."""
    inject(driver, Fault("cuDevicePrimaryCtxRetain", result=2))
    node = probe(driver, tmp_path)
    assert node.cuda_order == tuple(gpu.uuid for gpu in node.gpus)
    assert ([gpu.context_bytes > 0 for gpu in node.gpus], node.lost_gpus) == ([False, True], ())
    [note] = node.notes
    assert f"costs on {node.gpus[0].uuid} is not known" in note


def test_while_a_gpu_is_lost_the_order_is_not_known(driver: Path, tmp_path: Path) -> None:
    """ENV-13: numbers mean what they mean to NVML until it is back."""
    lose(driver, 0)
    assert probe(driver, tmp_path).cuda_order == ()
    lose(driver, 0, 0)
    node = load_node(str(tmp_path), str(driver), config=Config(), refresh=True)
    assert node.cuda_order == tuple(gpu.uuid for gpu in node.gpus)


def test_a_library_that_cannot_be_loaded_is_one_sentence(driver: Path, tmp_path: Path) -> None:
    (driver / "libnvidia-ml.so.1").write_bytes(b"not a library")
    with pytest.raises(CgpuError) as refusal:
        probe(driver, tmp_path)
    what = f"does not answer: {driver}/libnvidia-ml.so.1: file too short"
    assert str(refusal.value) == f"the NVIDIA driver in {driver} {what}"
    assert refusal.value.hint.startswith("install the driver again, or name its directory")


def test_twenty_at_once_ask_the_driver_once(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    code = (
        "import sys; from cgpu_node.facts import discovery;"
        "from cgpu_node.facts.node import load_node;"
        "from cgpu_node.settings.config import Config;"
        "ask = discovery.ask_driver;"
        "discovery.ask_driver = lambda *given: (print('asked'), ask(*given))[1];"
        "load_node(sys.argv[1], sys.argv[2], config=Config())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "state"), str(driver)]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(20)
    ]
    output = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 20
    assert sorted(output) == [b""] * 19 + [b"asked\n"]
