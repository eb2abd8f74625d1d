"""``python -m cgpu_sim DIR [--gpu NAME:MIB ...]`` makes a driver directory."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from cgpu_sim.directory import make_driver_dir
from cgpu_sim.machine import TESLA_T4, Gpu

_DESCRIPTION = "Make a driver directory: a simulated NVIDIA driver with its GPUs."

_FOREIGN = "it has files that are not a simulated driver's: name a new or an empty directory"


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
    folder, gpus = options.directory, options.gpu or [TESLA_T4]
    try:
        if not _may_be_filled(folder):
            parser.exit(2, f"{parser.prog}: {folder}: {_FOREIGN}\n")
        folder = make_driver_dir(folder, gpus)
    except OSError as error:
        parser.exit(1, f"{parser.prog}: {folder}: {error.strerror}\n")
    names = ", ".join(f"{gpu.name} of {gpu.mib} MiB" for gpu in gpus)
    command = f"cgpu-run --driver-dir {shlex.quote(str(folder))} --mem 40% -- PROGRAM"
    print(f"A simulated driver with {names} is in {folder}. Use it:\n  {command}")  # noqa: T201


def _may_be_filled(folder: Path) -> bool:
    """Whether nobody's files are there but those of a driver that was made before."""
    return not folder.exists() or (folder / "machine").exists() or not any(folder.iterdir())


if __name__ == "__main__":
    main()
