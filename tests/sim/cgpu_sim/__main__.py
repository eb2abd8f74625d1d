"""``python -m cgpu_sim DIR [--gpu NAME:MIB ...]`` makes a driver directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from cgpu_sim.directory import make_driver_dir
from cgpu_sim.machine import TESLA_T4, Gpu


def parse_gpu(text: str) -> Gpu:
    """``NAME:MIB`` as a GPU."""
    name, _, mib = text.rpartition(":")
    if not name or not mib.isascii() or not mib.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:MIB, such as 'Tesla T4:15109'")
    return Gpu(name=name, mib=int(mib))


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m cgpu_sim", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gpu", type=parse_gpu, action="append", metavar="NAME:MIB")
    options = parser.parse_args(arguments)
    make_driver_dir(options.directory, options.gpu or [TESLA_T4])


if __name__ == "__main__":
    main()
