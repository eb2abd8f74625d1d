"""``python -m cgpu_sim DIR [--gpu NAME:MIB[@ISLAND] ...]`` makes a driver directory."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import NoReturn

from cgpu_env import CgpuError, program
from cgpu_env.commandline import Parser
from cgpu_sim.directory import make_driver_dir
from cgpu_sim.machine import TESLA_T4, Gpu

_NAME = "python -m cgpu_sim"
_DESCRIPTION = "Make a driver directory: a simulated NVIDIA driver with its GPUs."

_FOREIGN = "it has files that are not a simulated driver's: name a new or an empty directory"


NVLINKS = 4  # between two GPUs of an island
_GPU = re.compile(r"(.+):([0-9]+)(?:@([0-9]{1,2}))?")


def parse_gpu(text: str) -> Gpu:
    """``NAME:MIB`` or ``NAME:MIB@ISLAND`` as a GPU."""
    found = _GPU.fullmatch(text)
    if not found or not int(found[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:MIB or NAME:MIB@ISLAND, such as 'Tesla T4:15109'"
        )
    name, mib, island = found.groups()
    return Gpu(name=name, mib=int(mib), island=int(island or 0), nvlinks=NVLINKS * bool(island))


def main(words: list[str] | None = None) -> NoReturn:
    """Run the command, and exit."""
    program.run(_NAME, lambda: _work(words))


def _work(words: list[str] | None) -> int:
    parser = Parser(prog=_NAME, description=_DESCRIPTION)
    parser.add_argument("directory", metavar="DIR", type=Path, help="made if it is missing")
    text = (
        "a GPU and its memory; may be repeated; one Tesla T4:15109 by default; GPUs of one island,"
        " a number from 1, have NVLinks to each other"
    )
    parser.add_argument(
        "--gpu", type=parse_gpu, action="append", metavar="NAME:MIB[@ISLAND]", help=text
    )
    options = parser.parse_args(words)
    folder, gpus = options.directory, options.gpu or [TESLA_T4]
    if not _may_be_filled(folder):
        raise CgpuError(f"{folder}: {_FOREIGN}")
    folder = make_driver_dir(folder, gpus)
    names = ", ".join(f"{gpu.name} of {gpu.mib} MiB" for gpu in gpus)
    command = f"cgpu-run --driver-dir {shlex.quote(str(folder))} --mem 40% -- PROGRAM"
    print(f"A simulated driver with {names} is in {folder}. Use it:\n  {command}")  # noqa: T201
    return 0


def _may_be_filled(folder: Path) -> bool:
    """Whether the directory has no files but those of a driver that was made before."""
    return not folder.exists() or (folder / "machine").exists() or not any(folder.iterdir())


if __name__ == "__main__":
    main()
