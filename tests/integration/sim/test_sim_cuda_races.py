"""Racing processes never take more of a simulated GPU than there is, nor lose any of it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from lab.driver.sim_cuda import Driver, Gpu, make_driver, read, tell

pytestmark = pytest.mark.integration

GPU_MIB = 2000
CONTEXT_MIB = 10

RACE = """
    import threading
    context = start()
    sys.stdin.readline()
    def take(count):
        check(cuda.cuCtxSetCurrent(context))
        for _ in range(count):
            status, address = alloc(100 * MIB)
            if status == 0:
                if used_mib() > 2000:
                    show("over")
                check(free(address))
            elif status != 2:
                show("status", status)
    threads = [threading.Thread(target=take, args=(100,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    show("done")
    sys.stdin.readline()
"""

FILL = """
    start()
    show("ready")
    sys.stdin.readline()
    taken = 0
    while alloc(2 * MIB)[0] == 0:
        taken += 2
    show(taken)
    sys.stdin.readline()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver", Gpu("small", GPU_MIB, context_mib=CONTEXT_MIB))


def test_racing_threads_and_processes_stay_within_the_gpu(driver: Driver) -> None:
    processes = [driver.start(RACE) for _ in range(4)]
    for process in processes:
        tell(process, "")
    assert [read(process) for process in processes] == ["done"] * 4
    ask = "start()\nshow(used_mib())"
    assert driver.check(ask) == [str(5.0 * CONTEXT_MIB)]
    for process in processes:
        process.communicate("\n")
    assert driver.check(ask) == [str(1.0 * CONTEXT_MIB)]


def test_two_processes_fill_the_gpu_to_the_last_piece(driver: Driver) -> None:
    with driver.start(FILL) as one, driver.start(FILL) as two:
        assert (read(one), read(two)) == ("ready", "ready")
        tell(one, "")
        tell(two, "")
        assert int(read(one)) + int(read(two)) == GPU_MIB - 2 * CONTEXT_MIB
        tell(one, "")
        tell(two, "")


def test_processes_killed_at_random_points_leave_nothing(driver: Driver) -> None:
    choose = random.Random(5)
    program = """
        start()
        show("ready")
        while True:
            addresses = [alloc(size << 10)[1] for size in (100, 3000, 20000)]
            check(launch(kernel()))
            for address in addresses:
                check(free(address))
    """
    for _ in range(12):
        with driver.start(program) as process:
            assert read(process) == "ready"
            time.sleep(choose.uniform(0, 0.03))
            process.kill()
    assert driver.check("start()\nshow(used_mib())") == [str(1.0 * CONTEXT_MIB)]
