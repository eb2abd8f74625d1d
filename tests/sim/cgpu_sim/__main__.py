"""``python -m cgpu_sim DIR [--gpu NAME:MIB ...]`` makes a driver directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from cgpu_sim.directory import make_driver_dir
from cgpu_sim.machine import TESLA_T4, Gpu

_DESCRIPTION = "Make a driver directory: a simulated NVIDIA driver with its GPUs."


def parse_gpu(text: str) -> Gpu:
    """``NAME:MIB`` as a GPU."""
    name, _, mib = text.rpartition(":")
    if not name or not mib.isascii() or not mib.isdigit() or not int(mib):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:MIB, such as 'Tesla T4:15109'")
    return Gpu(name=name, mib=int(mib))


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m cgpu_sim", description=_DESCRIPTION)
    parser.add_argument("directory", metavar="DIR", type=Path, help="made if it is missing")
    text = "a GPU and its memory; may be repeated; one Tesla T4:15109 by default"
    parser.add_argument("--gpu", type=parse_gpu, action="append", metavar="NAME:MIB", help=text)
    options = parser.parse_args(arguments)
    try:
        make_driver_dir(options.directory, options.gpu or [TESLA_T4])
    except OSError as error:
        parser.exit(1, f"{parser.prog}: {options.directory}: {error.strerror}\n")


if __name__ == "__main__":
    main()
