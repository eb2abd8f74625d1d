"""All kinds of memory at once: random sequences, threads, and death in the middle."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Fault, inject
from lab.driver.cuda_proxied import CONTEXT, MIB

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

STEPS = """
import random
from lab.calls.cuda_kind_calls import *

class World:
    # What one thread holds; each step is a method that does nothing where it makes no sense.

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.stream = made(cuda.cuStreamCreate, 0)
        self.linear, self.pooled, self.pools, self.descriptors = [], [], [], []
        self.handles, self.mappings, self.execs, self.modules, self.libraries = [], [], [], [], []
        self.refused = 0
        self.address = reserve(16384 * MIB)
        self.next = 0

    def size(self, unit=2 * MIB):
        return self.random.choice((1, 2, 5, 30, 100, 300)) * unit

    def took(self, status):
        assert status in (0, 2), status
        self.refused += status == 2
        return status == 0

    def some(self, things):
        return things.pop(self.random.randrange(len(things))) if things else None

    def allocate(self):
        status, address = alloc(self.size())
        if self.took(status):
            self.linear.append(address)

    def free(self):
        if self.linear:
            check(free(self.some(self.linear)))

    def free_linear_async(self):
        if self.linear:
            check(free_async(self.some(self.linear), self.stream))
            check(cuda.cuStreamSynchronize(self.stream))

    def allocate_async(self):
        pool = self.random.choice([None, *self.pools])
        size = self.size(MIB) + self.random.randrange(MIB)
        status, address = alloc_async(size, pool, self.stream)
        if self.took(status):
            self.pooled.append(address)

    def free_async(self):
        if self.pooled:
            check(free_async(self.some(self.pooled), self.stream))

    def synchronise(self):
        if self.random.randrange(2):
            check(cuda.cuCtxSynchronize())
        else:
            check(cuda.cuStreamSynchronize(self.stream))

    def make_pool(self):
        if len(self.pools) < 4:
            self.pools.append(make_pool(threshold=self.random.choice((0, 64 * MIB, 2**64 - 1))))

    def destroy_pool(self):
        if self.pools:
            check(cuda.cuMemPoolDestroy(self.some(self.pools)))

    def trim_pool(self):
        pool = self.random.choice([default_pool(), *self.pools])
        check(cuda.cuMemPoolTrimTo(pool, c_size_t(self.size())))

    def set_threshold(self):
        if self.pools:
            set_threshold(self.random.choice(self.pools), self.size())

    def create(self):
        status, handle = physical(self.size(), handle_types=POSIX_FD * self.random.randrange(2))
        if self.took(status):
            self.handles.append(handle)

    def map(self):
        if self.handles and self.next < 16000:
            handle = self.random.choice(self.handles)
            address = self.address + self.next * MIB
            if map_at(address, 2 * MIB, handle) == 0:
                self.mappings.append(address)
                self.next += 2

    def retain(self):
        if self.mappings:
            address = c_void_p(self.random.choice(self.mappings))
            self.handles.append(made(cuda.cuMemRetainAllocationHandle, address, kind=c_uint64))

    def release(self):
        if self.handles:
            check(cuda.cuMemRelease(self.some(self.handles)))

    def unmap(self):
        if self.mappings:
            check(unmap(self.some(self.mappings), 2 * MIB))

    def export(self):
        fd = c_int()
        if self.handles and cuda.cuMemExportToShareableHandle(
            byref(fd), self.random.choice(self.handles), POSIX_FD, c_uint64(0)
        ) == 0:
            self.descriptors.append(fd.value)

    def import_again(self):
        if self.descriptors:
            self.handles.append(import_fd(self.random.choice(self.descriptors)))

    def close(self):
        if self.descriptors:
            os.close(self.some(self.descriptors))

    def instantiate(self):
        if len(self.execs) < 5:
            self.execs.append(instantiate(memory_graph(self.size(), self.size())))

    def upload(self):
        if self.execs:
            self.took(cuda.cuGraphUpload(self.random.choice(self.execs), self.stream))

    def launch(self):
        if self.execs:
            self.took(cuda.cuGraphLaunch(self.random.choice(self.execs), self.stream))

    def destroy_exec(self):
        if self.execs:
            check(cuda.cuGraphExecDestroy(self.some(self.execs)))

    def trim_graphs(self):
        check(cuda.cuDeviceGraphMemTrim(0))

    def load(self):
        module = c_void_p()
        if self.took(cuda.cuModuleLoadData(byref(module), PTX)):
            self.modules.append(module)

    def unload(self):
        if self.modules:
            check(cuda.cuModuleUnload(self.some(self.modules)))

    def load_library(self):
        library, module = load_library(PTX), c_void_p()
        if self.took(cuda.cuLibraryGetModule(byref(module), library)):
            self.libraries.append(library)
        else:
            check(cuda.cuLibraryUnload(library))

    def unload_library(self):
        if self.libraries:
            check(cuda.cuLibraryUnload(self.some(self.libraries)))

    def step(self):
        step = self.random.choice(STEPS)
        getattr(self, step)()
        return step

    def finish(self):
        for things, step in (
            (self.linear, self.free), (self.pooled, self.free_async),
            (self.pools, self.destroy_pool), (self.mappings, self.unmap),
            (self.handles, self.release), (self.descriptors, self.close),
            (self.execs, self.destroy_exec), (self.modules, self.unload),
            (self.libraries, self.unload_library),
        ):
            while things:
                step()
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemPoolTrimTo(default_pool(), c_size_t(0)))
        check(cuda.cuDeviceGraphMemTrim(0))

CODE = ("load", "unload", "load_library", "unload_library")
STEPS = [name for name in vars(World) if name[0] != "_" and
         name not in ("size", "took", "some", "step", "finish")]
"""


def _small(proxied: Proxied, mib: int) -> Proxied:
    """A cap of whole pieces beside the context, so that granularity leaves no figure open."""
    proxied.base.set_cap(CONTEXT + mib * MIB)
    return proxied


@pytest.mark.parametrize("seed", range(6))
def test_mem_1_ledger_and_driver_agree_after_every_step(proxied: Proxied, seed: int) -> None:
    """MEM-1, MEM-2: 500 random steps with refusals among them; in the end nothing is left."""
    outcome = _small(proxied, 500).check(
        STEPS
        + """
context()
base = used()
world = World(int(sys.argv[1]))
for count in range(500):
    step = world.step()
    rest = left()  # looks again at closed descriptors
    if drift() != 0 or used() > 605 * MIB or used() + rest != 605 * MIB:
        raise SystemExit(f"step {count}, {step}: drift {drift()}, used {used()}, left {rest}")
world.finish()
show(world.refused > 10, (left(), used() - base)[1], drift())
""",
        str(seed),
        CGPU_LOG="off",
    )
    assert outcome.out == ["True 0 0"]


@pytest.mark.parametrize(
    "slow",
    [
        None,
        "cuGraphLaunch",
        "cuGraphUpload",
        "cuDeviceGraphMemTrim",
        "cuDeviceGetGraphMemAttribute",
        "cuMemPoolTrimTo",
    ],
)
def test_mem_1_four_threads_leave_ledger_and_driver_in_agreement(
    proxied: Proxied, slow: str | None
) -> None:
    """MEM-1: no deadlock, no drift once all have finished, and the cap holds meanwhile.

    A slow call of the driver gives the other threads time to come between.
    """
    if slow is not None:
        inject(proxied.machine, Fault(slow, delay_us=500, repeat=True))
    outcome = _small(proxied, 500).check(
        STEPS
        + """
import threading
import traceback
STEPS = [step for step in STEPS if step not in CODE]
current = context()
base = used()
failures, worlds = [], []

def work(seed):
    try:
        check(cuda.cuCtxSetCurrent(current))
        world = World(seed)
        for _ in range(400):
            world.step()
            if used() > 605 * MIB:
                failures.append(used())
        world.finish()
    except BaseException:
        failures.append(traceback.format_exc())

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check(cuda.cuCtxSynchronize())
check(cuda.cuMemPoolTrimTo(default_pool(), c_size_t(0)))
show(failures, (left(), used() - base)[1], drift())
""",
        CGPU_LOG="off",
    )
    assert outcome.out == ["[] 0 0"]


def test_mem_7_killed_in_the_middle_it_gives_everything_back(proxied: Proxied) -> None:
    """MEM-7: within a second, whatever kinds it held."""
    program = (
        STEPS
        + """
context()
world = World(3)
while True:
    world.step()
    if world.pooled and world.mappings and world.execs and world.modules:
        print("busy", flush=True)
"""
    )
    with _small(proxied, 500).start(program, CGPU_LOG="off") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        assert proxied.base.used() > CONTEXT
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 1
    while proxied.base.used() != 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert proxied.base.used() == 0
    assert proxied.check("context()\nshow(truth() - used())").out == ["0"]
