"""Small allocations share blocks of 2 MiB, and the ledger is never below what the driver took."""

from __future__ import annotations

import pytest

from lab.driver.cuda_proxied import CAP, CONTEXT, MIB, Proxied

pytestmark = pytest.mark.integration

BLOCK = 2 * MIB


def test_mem_1_small_requests_are_refused_when_the_driver_has_taken_the_cap(
    proxied: Proxied,
) -> None:
    """MEM-1: two requests of 700,000 bytes fill a block, into which a third does not fit."""
    outcome = proxied.check(
        """
        context()
        count = 0
        while alloc(700_000)[0] == 0:
            count += 1
        show(count, truth(), used())
        """
    )
    count, taken, charged = map(int, outcome.out[0].split())
    assert taken <= CAP
    assert charged == taken
    assert count == (CAP - CONTEXT) // BLOCK * 2


@pytest.mark.parametrize("size", [1, 513, 100_000, 700_000, MIB, MIB + 1, 3 * MIB + 5])
def test_mem_1_the_ledger_is_what_the_driver_took_after_every_call(
    proxied: Proxied, size: int
) -> None:
    """MEM-1: while pieces come, while every other one goes, and when all are gone."""
    outcome = proxied.check(
        """
        context()
        size = int(sys.argv[1])
        apart = set()
        held = []
        for _ in range(40):
            status, address = alloc(size)
            check(status)
            held.append(address)
            apart.add(used() - truth())
        for address in held[::2] + held[1::2]:
            check(free(address))
            apart.add(used() - truth())
        show(apart, used())
        """,
        str(size),
    )
    assert outcome.out == [f"{{0}} {CONTEXT}"]


def test_mem_2_at_the_cap_what_fits_into_a_block_is_served_and_nothing_else(
    proxied: Proxied,
) -> None:
    """MEM-2: as on a smaller GPU; a hole is as large as it is, not as holes together."""
    outcome = proxied.check(
        """
        context()
        pieces = [alloc(512 << 10)[1] for _ in range(8)]
        while alloc(2 * MIB)[0] == 0:
            pass
        full = used()
        show(alloc(512 << 10)[0])
        check(free(pieces[1]))
        check(free(pieces[6]))
        show(alloc(MIB)[0], used() - full, truth() - full)
        show([alloc(256 << 10)[0] for _ in range(5)], used() - full, truth() - full)
        """
    )
    assert outcome.out == ["2", "2 0 0", "[0, 0, 0, 0, 2] 0 0"]


def test_mem_6_threads_that_share_blocks_at_the_cap_are_never_over_it_nor_refused_falsely(
    proxied: Proxied,
) -> None:
    """MEM-6: each thread frees a piece and asks for it again, while nobody has room for a block."""
    outcome = proxied.check(
        """
        import threading
        made = context()
        held = [[alloc(200_000)[1] for _ in range(10)] for _ in range(4)]
        while alloc(2 * MIB)[0] == 0:
            pass
        full, refused, over = used(), [], []
        def work(pieces):
            check(cuda.cuCtxSetCurrent(made))
            for turn in range(400):
                check(free(pieces[turn % 10]))
                status, pieces[turn % 10] = alloc(100_000)
                refused.append(status)
                over.append(truth() > full)
        threads = [threading.Thread(target=work, args=(each,)) for each in held]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        show(sum(refused), sum(over), used() - truth())
        """
    )
    assert outcome.out == ["0 0 0"]


def test_mem_1_a_piece_that_a_stream_frees_holds_its_block_until_that_is_synchronised(
    proxied: Proxied,
) -> None:
    """MEM-1: the driver has it until then, so its block stays charged when all others are gone."""
    outcome = proxied.check(
        """
        made = context()
        stream = c_void_p()
        check(cuda.cuStreamCreate(byref(stream), 1))
        pieces = [alloc(1000)[1] for _ in range(4)]
        before = used()
        for piece in pieces[:3]:
            check(cuda.cuMemFreeAsync(c_uint64(piece), stream))
        check(free(pieces[3]))
        show(used() - before)
        check(cuda.cuStreamSynchronize(stream))
        show(before - used(), used() - truth())
        check(cuda.cuMemFreeAsync(c_uint64(alloc(1000)[1]), stream))
        check(cuda.cuCtxDestroy_v2(made))
        show(used(), left.__name__)
        """
    )
    assert outcome.out == ["0", f"{BLOCK} 0", "0 left"]


def test_blocks_are_of_a_context_and_go_with_it(proxied: Proxied) -> None:
    outcome = proxied.check(
        """
        first = context()
        check(alloc(1000)[0])
        second = context()
        check(alloc(1000)[0])
        show((used() - truth()) // MIB, used() // MIB)
        check(cuda.cuCtxDestroy_v2(second))
        show(used() // MIB)
        check(cuda.cuCtxSetCurrent(first))
        show(alloc(1000)[0], used() // MIB)
        check(cuda.cuCtxDestroy_v2(first))
        show(used())
        """
    )
    two = 2 * (CONTEXT + BLOCK) // MIB
    assert outcome.out == [f"0 {two}", f"{two // 2}", f"0 {two // 2}", "0"]


def test_what_a_program_is_shown_as_free_can_be_had_in_one_piece(proxied: Proxied) -> None:
    """MEM-2, MEM-4: free memory is shown in whole blocks; the cap is no multiple of them."""
    outcome = proxied.check(
        """
        context()
        available = left()
        show(available % (2 * MIB), alloc(available + 1)[0])
        status, address = alloc(available)
        show(status, left(), alloc(1)[0], used() - truth(), free(address), left() == available)
        """
    )
    assert outcome.out == ["0 2", "0 0 2 0 0 True"]
