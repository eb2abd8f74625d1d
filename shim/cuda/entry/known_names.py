"""Write ``known_names.inc`` from ``../../driver_entry_points.csv``: all names, for C.

Run ``python shim/cuda/entry/known_names.py`` after each change of the table; a test fails if it was
forgotten.
"""
# ruff: noqa: INP001 - a script beside the C files that it serves

from __future__ import annotations

import csv
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "driver_entry_points.csv"
TARGET = HERE / "known_names.inc"


def render(table: Path = TABLE) -> str:
    """Return the C string literal that holds every name of ``table``."""
    with table.open(newline="") as file:
        names = sorted(row["name"] for row in csv.DictReader(file))
    lines = textwrap.wrap(" ".join(names), 100, break_long_words=False)
    body = "".join(f'    "{line.replace(" ", chr(92) + "0")}\\0"\n' for line in lines)
    return "/* Made by known_names.py from ../../driver_entry_points.csv. */\n" + body


if __name__ == "__main__":
    TARGET.write_text(render())
