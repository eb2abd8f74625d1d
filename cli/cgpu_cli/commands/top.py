"""``cgpu top``: who uses the GPUs, live."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

from cgpu_cli.show.look import query_usage
from cgpu_cli.show.words import add_gpus, filter_usage, parse_seconds
from cgpu_env import CgpuError

if TYPE_CHECKING:
    import argparse

    from cgpu_cli.show.board import Board
    from cgpu_node.view.view import Usage

_SIZE = (164, 24)
_LEAST_MIB = 128  # below 80 columns the screen and its threads stop half-way, or never end


class Top:
    """Show who uses the GPUs: live, sorted, with a short history."""

    name = "top"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the GPUs to show, and how often."""
        add_gpus(parser)
        parser.add_argument(
            "-d",
            "--delay",
            metavar="SECONDS",
            type=parse_seconds,
            default=1.0,
            help="time between two looks",
        )
        parser.add_argument(
            "--svg", metavar="FILE", help="draw the screen to FILE after --looks looks, and end"
        )
        parser.add_argument("--looks", metavar="N", type=int, default=1, help="1 by default")

    def run(self, given: argparse.Namespace) -> int:
        """Show the screen until the user quits."""
        if given.svg is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CgpuError("top: this is no terminal", hint="cgpu-smi shows the same once")
        _check_space()

        def read_usage() -> Usage:
            return filter_usage(query_usage(given.state_dir, given.driver_dir), given.id)

        read_usage()  # so that a refusal is shown at once
        from cgpu_cli.show.board import Board  # 0.3 s
        from cgpu_cli.show.screen import is_ascii

        board = Board(read_usage, given.delay, is_ascii=given.svg is None and is_ascii())
        if given.svg is None:
            board.run()
        else:
            import asyncio

            asyncio.run(_draw_board(board, os.path.abspath(given.svg), given.looks))
        return board.return_code or 0


def _check_space() -> None:
    """Refuse to start if the screen is too small."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < _LEAST_MIB << 20:
        has = f"this shell allows {allowed >> 20} MiB"
        raise CgpuError(
            f"top: needs {_LEAST_MIB} MiB of address space, and {has}",
            hint="raise it (ulimit -v), or use cgpu-smi, which shows the same once",
        )


async def _draw_board(board: Board, path: str, looks: int) -> None:
    async with board.run_test(size=_SIZE) as pilot:
        while board.looks < looks:
            await pilot.pause(0.05)
        await pilot.pause()
        with open(path, "w", encoding="utf-8") as file:  # noqa: ASYNC230 (nothing else waits)
            file.write(board.export_screenshot())
