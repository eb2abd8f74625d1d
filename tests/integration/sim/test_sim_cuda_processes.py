"""Processes share the simulated GPUs, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from lab.driver.sim_cuda import Driver, Fault, Gpu, make_driver, read, tell

pytestmark = pytest.mark.integration

HOLD = """
    start()
    show(alloc(int(sys.argv[1]) * MIB)[0])
    sys.stdin.readline()
"""
ASK = """
    start()
    show(used_mib())
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


def test_two_processes_share_the_memory_of_a_gpu(driver: Driver) -> None:
    with driver.start(HOLD, "10000") as first, driver.start(HOLD, "100") as second:
        assert (read(first), read(second)) == ("0", "0")
        assert driver.check(ASK) == [str(10100 + 3 * 105.0)]
        out = driver.check("""
            start()
            show(alloc(6000 * MIB)[0])
        """)
        assert out == ["2"]
        tell(first, "")
        tell(second, "")
    assert driver.check(ASK) == ["105.0"]


def test_a_program_without_standard_streams_does_not_write_into_the_machine(
    driver: Driver,
) -> None:
    """Nor does its child."""
    machine = driver.path / "machine"
    head = machine.read_bytes()[:12]  # what it is, of which version and size
    outcome = driver.run("""
        for fd in range(3):
            os.close(fd)
        ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()
        start()
        child = os.fork()
        for fd in range(3):
            try:
                os.write(fd, b"x" * 64)
            except OSError:
                continue
            os._exit(9)
        os._exit(0 if child == 0 else os.waitpid(child, 0)[1] >> 8)
    """)
    assert outcome.code == 0
    assert machine.read_bytes()[:12] == head


def test_memory_of_a_killed_process_returns(driver: Driver) -> None:
    with driver.start(HOLD, "14000") as process:
        assert read(process) == "0"
        process.kill()
        process.wait()
    out = driver.check("""
        start()
        show(alloc(14000 * MIB)[0])
    """)
    assert out == ["0"]


def test_memory_of_a_killed_process_returns_though_its_child_lives(driver: Driver) -> None:
    with driver.start("""
        start()
        check(alloc(14000 * MIB)[0])
        if os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        show("ready")
        os.kill(os.getpid(), 9)
    """) as process:
        assert read(process) == "ready"
        process.wait()
        assert driver.check(ASK) == ["105.0"]
        tell(process, "")


def test_a_forked_child_cannot_use_the_driver(driver: Driver) -> None:
    out = driver.check("""
        start()
        address = alloc(MIB)[1]
        if os.fork() == 0:
            show(cuda.cuInit(0), alloc(1)[0], free(address), cuda.cuCtxSynchronize())
            os._exit(0)
        os.wait()
        show(free(address))
    """)
    assert out == ["3 3 3 3", "0"]


def test_nothing_works_before_initialisation(driver: Driver) -> None:
    out = driver.check("""
        version = made(cuda.cuDriverGetVersion, kind=c_int)
        show(version.value, cuda.cuDeviceGetCount(byref(version)), alloc(1)[0])
        show(cuda.cuInit(1), cuda.cuInit(0), alloc(1)[0])
    """)
    assert out == ["12040 3 3", "1 0 201"]


NAMES = """
    if cuda.cuInit(0) != 0:
        raise SystemExit(show("none"))
    count = made(cuda.cuDeviceGetCount, kind=c_int).value
    names = [ctypes.create_string_buffer(64) for _ in range(count)]
    for index, name in enumerate(names):
        check(cuda.cuDeviceGetName(name, 64, index))
    show(*(name.value.decode() for name in names))
"""


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1,0", "B A"),
        ("2", "C"),
        ("0,7,1", "A"),
        ("-1", "none"),
        ("", "none"),
        ("1,1", "none"),
        ("GPU-2222", "B"),
        ("gpu-3,0", "C A"),
        ("GPU-", "none"),
    ],
)
def test_visible_devices_are_chosen_as_by_the_driver(
    tmp_path: Path, visible: str, names: str
) -> None:
    gpus = [
        Gpu(name, 1000, uuid=f"GPU-{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}")
        for name, digit in zip("ABC", "123", strict=True)
    ]
    out = make_driver(tmp_path / "driver", *gpus).check(NAMES, CUDA_VISIBLE_DEVICES=visible)
    assert out == [names]


@pytest.mark.parametrize(
    ("order", "visible", "names"),
    [
        ("", None, "fast middle slow slow2"),
        ("FASTEST_FIRST", "0,3", "fast slow2"),
        ("PCI_BUS_ID", None, "slow fast slow2 middle"),
        ("PCI_BUS_ID", "0,3", "slow middle"),
        ("", "GPU-1,1", "slow middle"),
    ],
)
def test_numbers_mean_what_the_order_of_devices_says(
    tmp_path: Path, order: str, visible: str | None, names: str
) -> None:
    machine = [("slow", 40), ("fast", 142), ("slow2", 40), ("middle", 72)]
    gpus = [
        Gpu(name, 1000, uuid=f"GPU-{digit * 8}-1111-1111-1111-111111111111", sm_count=count)
        for digit, (name, count) in zip("1234", machine, strict=True)
    ]
    given = {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": visible}
    driver = make_driver(tmp_path / "driver", *gpus)
    shown = driver.check(NAMES, **{name: text for name, text in given.items() if text})
    assert shown == [names]


def test_a_gpu_without_its_device_node_is_not_there(tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver", Gpu("A"), Gpu("B"))
    (driver.path / "gpu0").unlink()
    out = driver.check("""
        check(cuda.cuInit(0))
        name = ctypes.create_string_buffer(64)
        check(cuda.cuDeviceGetName(name, 64, 0))
        show(made(cuda.cuDeviceGetCount, kind=c_int).value, name.value.decode())
    """)
    assert out == ["1 B"]


def test_injected_faults_hit_the_call_they_name(driver: Driver) -> None:
    driver.fail(Fault("cuMemAlloc", nth=2, result=2))
    driver.fail(Fault("cuMemFree", result=700, repeat=True))
    out = driver.check("""
        start()
        show(alloc(1)[0], alloc(1)[0], alloc(1)[0], free(0), free(0))
    """)
    assert out == ["0 2 0 700 700"]


def test_an_injected_kill_is_a_kill(driver: Driver) -> None:
    driver.fail(Fault("cuMemGetInfo", kill=True))
    assert driver.run(ASK).code == -signal.SIGKILL
    assert driver.check(ASK) == ["105.0"]


def test_what_is_not_simulated_is_an_error_and_logged_once(driver: Driver) -> None:
    outcome = driver.run(
        """
        show(cuda.cuGreenCtxCreate(None, None, 0, 0), cuda.cuGreenCtxCreate(None, None, 0, 0))
        """,
        CGPU_SIM_LOG="1",
    )
    assert outcome.out == ["801 801"]
    assert outcome.log == "cgpu-sim: cuGreenCtxCreate is not simulated\n"


def test_the_host_sees_the_pid_of_a_process_in_another_pid_namespace(driver: Driver) -> None:
    """The lock that shows a process's pid is translated by the kernel."""
    program = driver.start(HOLD, "10").args
    assert isinstance(program, list)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *as_root, "--pid", "--fork", *program]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=driver.environment(),
    ) as process:
        assert read(process) == "0"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        out = driver.check(
            """
            import fcntl, struct
            slot = (1 << 50) + 0x20000
            with open(sys.argv[1], "r+b") as machine:
                for byte in range(slot, slot + 8):
                    ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
                    answer = struct.unpack("hhqqi4x", fcntl.fcntl(machine, fcntl.F_GETLK, ask))
                    if answer[0] != fcntl.F_UNLCK:
                        show(answer[4])
            """,
            os.fspath(driver.path / "machine"),
        )
        tell(process, "")
    assert set(children) <= set(out)
    assert all(re.fullmatch(r"\d+", line) for line in out)


def test_a_machine_made_anew_is_empty_and_leaves_the_old_one_to_its_users(driver: Driver) -> None:
    with driver.start(HOLD, "10000") as process:
        assert read(process) == "0"
        make_driver(driver.path)
        assert driver.check(ASK) == ["105.0"]
        tell(process, "")
    assert process.returncode == 0
