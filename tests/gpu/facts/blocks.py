"""Facts about small allocations: which blocks of 2 MiB the driver puts them into, and when."""

from __future__ import annotations

import itertools
from ctypes import byref, c_size_t, c_uint64
from typing import Any

from gpu.check import CHUNK, MIB, Finding, check
from gpu.interface.driver import Driver, array_descriptor

SIZES = (1, 256, 257, 512, 4096, 65536, 65537, 300_000, 524_288, 700_000, MIB - 1, MIB)
LARGER = (MIB + 1, 1_500_000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * MIB)
EACH = 24


def _blocks(address: int, size: int) -> set[int]:
    return set(range(address // CHUNK, (address + size - 1) // CHUNK + 1))


def _follow(driver: Driver, size: int) -> dict[str, Any]:
    """Allocate, then free, ``EACH`` times: what is taken against the blocks that are touched."""
    start, held, most, kept = driver.used(), [], 0, 0
    apart = {"fewest": 0, "most": 0}

    def compare() -> int:
        touched: set[int] = set()
        for address in held:
            touched |= _blocks(address, size)
        beyond = driver.used() - start - len(touched) * CHUNK
        apart["fewest"] = min(apart["fewest"], beyond)
        apart["most"] = max(apart["most"], beyond)
        return len(touched)

    for _ in range(EACH):
        held.append(driver.alloc(size))
        most = max(most, compare())
    addresses = sorted(held)
    steps = sorted({b - a for a, b in itertools.pairwise(addresses)})[:4]
    for address in held[::2] + held[1::2]:
        driver.free(address)
        held.remove(address)
        kept = max(kept, driver.used() - start) if not held else kept
        compare()
    return {"blocks": most, "beyond the blocks touched": apart, "address steps": steps,
            "kept when empty": kept}  # fmt: skip


@check("facts")
def what_is_taken_is_the_blocks_that_addresses_touch() -> Finding:
    """Linear memory takes the 2 MiB blocks that its addresses touch, and no more.

    After each allocation and each free, from 1 byte to 3 MiB; a block goes back when it is empty.
    """
    driver = Driver()
    driver.start()
    seen = {str(size): _follow(driver, size) for size in (*SIZES, *LARGER)}
    holds = all(each["beyond the blocks touched"]["most"] <= 0 for each in seen.values())
    return Finding(holds, {"by size": seen})


@check("facts")
def a_request_goes_into_a_hole_of_its_size() -> Finding:
    """A request of up to 1 MiB takes no block where one of the context has a hole for it."""
    driver = Driver()
    driver.start()
    seen = {}
    for size in SIZES:
        held = [driver.alloc(size) for _ in range(8)]
        driver.free(held.pop(0))
        before = driver.used()
        address = driver.alloc(size)
        seen[str(size)] = driver.used() - before
        for each in (*held, address):
            driver.free(each)
    return Finding(not any(seen.values()), {"bytes taken for a hole": seen})


@check("facts")
def small_pitched_memory_is_packed_as_well() -> Finding:
    """Pitched memory of up to 1 MiB shares blocks, and its pitch is a multiple of 512."""
    driver = Driver()
    driver.start()
    before, held, pitches, touched = driver.used(), [], set(), set[int]()
    for width in (1, 100, 513, 1000):
        address, pitch = c_uint64(), c_size_t()
        driver.call("cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(width),
                    c_size_t(64), 4)  # fmt: skip
        held.append(address.value)
        pitches.add(pitch.value)
        touched |= _blocks(address.value, pitch.value * 64)
    taken = driver.used() - before
    for each in held:
        driver.free(each)
    holds = all(pitch % 512 == 0 for pitch in pitches) and taken <= len(touched) * CHUNK
    return Finding(holds, {"pitches": sorted(pitches), "taken": taken, "blocks": len(touched)})


@check("facts")
def a_small_array_takes_no_more_than_a_block() -> Finding:
    """An array of up to 2 MiB takes 2 MiB at most, which is what cgpu charges for it.

    Whether small ones share blocks is among what was measured: then cgpu charges too much.
    """
    driver = Driver()
    driver.start()
    seen = {}
    for side in (1, 16, 64, 128, 256):
        before = driver.used()
        arrays = [driver.made("cuArray3DCreate_v2", array_descriptor(side, side)) for _ in range(8)]
        seen[f"8 of {side} x {side}"] = driver.used() - before
        for array in arrays:
            driver.call("cuArrayDestroy", array)
    return Finding(all(taken <= 8 * CHUNK for taken in seen.values()), {"bytes": seen})
