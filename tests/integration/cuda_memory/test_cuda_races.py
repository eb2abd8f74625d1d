"""Containers that race for one GPU with small allocations, which share blocks of the driver.

And threads of one process that race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import run
from lab.driver.cuda_base import lay_out
from lab.driver.cuda_proxied import CONTEXT, MIB, Proxied
from lab.driver.nvml_base import Gpu

if TYPE_CHECKING:
    from pathlib import Path

    from lab.runs.children import Child

pytestmark = pytest.mark.integration

CONTAINERS, PROCESSES, TURNS = 16, 4, 3
SHARE = PROCESSES * CONTEXT + 40 * MIB
WORKER = """
import random
dice = random.Random(int(sys.argv[1]))
context()
show("ready")
held = []
def grow():
    status, address = alloc(dice.choice((1, 600, 4000, 70_000, 300_000, 700_000, MIB)))
    if status == 0:
        held.append(address)
    return status
for command in sys.stdin:
    if command == "mix\\n":
        for _ in range(80):
            if held and dice.random() < 0.45:
                check(free(held.pop(dice.randrange(len(held)))))
            else:
                grow()
    elif command == "fill\\n":
        while alloc(700_000)[0] == 0:
            pass
    show(truth())
"""


def _containers(proxied: Proxied, folder: Path) -> list[Proxied]:
    library = proxied.base.path / "real" / "libcuda.so.1"
    limit = Gpu().limited(6, 15)._replace(context_bytes=CONTEXT, cap_bytes=SHARE)
    return [
        Proxied(lay_out(folder / f"container{n}", library.resolve(), [limit]), proxied.machine)
        for n in range(CONTAINERS)
    ]


def _say(process: Child, command: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{command}\n")
    process.stdin.flush()


def _hear(process: Child) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_mem_6_containers_whose_processes_pack_small_memory_into_blocks_keep_to_their_caps(
    proxied: Proxied, tmp_path: Path
) -> None:
    """MEM-6: no ledger is over its cap, all ledgers have what the driver took, none is refused
    what fits."""
    containers = _containers(proxied, tmp_path)
    workers = [
        each.start(WORKER, str(4 * n + k), CGPU_LOG="off")
        for n, each in enumerate(containers)
        for k in range(PROCESSES)
    ]
    assert {_hear(worker) for worker in workers} == {"ready"}
    for command in ["mix"] * TURNS + ["fill"]:
        for worker in workers:
            _say(worker, command)
        for worker in workers:
            assert _hear(worker).isdigit()
            assert all(each.base.used() <= SHARE for each in containers)
        _say(workers[0], "look")
        taken = int(_hear(workers[0]))
        used = [each.base.used() for each in containers]
        assert taken <= sum(used)
        assert taken >= CONTAINERS * PROCESSES * CONTEXT
    assert all(SHARE - each < 2 * MIB for each in used)
    for worker in workers:
        worker.communicate(timeout=60)
    assert [each.base.used() for each in containers] == [0] * CONTAINERS


def test_destroying_a_stream_in_which_memory_was_freed_disturbs_no_capture(
    proxied: Proxied,
) -> None:
    """The program did not ask whether the stream's work is done, which no capture allows."""
    out = run(
        proxied,
        """
        stream, captured = made(cuda.cuStreamCreate, 1), made(cuda.cuStreamCreate, 1)
        before = used()
        check(free_async(alloc(64 * MIB)[1], stream))
        check(cuda.cuStreamBeginCapture_v2(captured, 0))
        check(cuda.cuStreamDestroy_v2(stream))
        print(used() - before, cuda.cuStreamEndCapture(captured, byref(c_void_p())))
        """,
    )
    assert out == ["0 0"]


def test_mem_1_a_context_that_is_destroyed_while_it_grows_is_given_back_once(
    proxied: Proxied,
) -> None:
    """MEM-1: of what it had before, nothing is kept for the next context at its address."""
    out = run(
        proxied,
        """
        import threading
        import time
        from pathlib import Path
        from cgpu_sim import Fault, inject
        image = PTX.replace(b"plain", b"local_%db")
        def local(bytes):
            module = made(cuda.cuModuleLoadData, image % bytes)
            function = c_void_p()
            cuda.cuModuleGetFunction(byref(function), module, b"local_%db" % bytes)
        check(alloc(1000 * MIB)[0])
        before = used()
        grows = made(cuda.cuCtxCreate_v2, 0, 0)
        local(9216)
        def grow():
            check(cuda.cuCtxSetCurrent(grows))
            local(10240)
        thread = threading.Thread(target=grow)
        machine = Path(os.environ["CGPU_SIM_MACHINE"]).parent
        inject(machine, Fault("cuDeviceGetAttribute", delay_us=1_000_000))
        thread.start()
        time.sleep(0.3)  # until it waits
        check(cuda.cuCtxDestroy_v2(grows))
        thread.join()
        show((used() - before) // MIB)
        """,
    )
    assert out == ["0"]
