"""The program ``at_the_cap.py``, at work in a container or session."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from lab.containers.enclosure import wait_until

PROGRAM = Path(__file__).resolve().parents[2] / "system" / "programs" / "at_the_cap.py"


class Figures(NamedTuple):
    """What it says."""

    rounds: int
    wrong: int
    mapped: list[int]


class Working:
    """Started by ``words``."""

    def __init__(self, words: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    def figures(self) -> Figures:
        """How far it is."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Figures(**json.loads(self.process.stdout.readline()))

    def at_work(self) -> Figures:
        """Its figures after three more rounds at the cap, all as they should be."""
        begun = self.figures().rounds
        wait_until(lambda: self.figures().rounds >= begun + 3, "it goes on")
        figures = self.figures()
        assert figures.wrong == 0
        return figures

    def end(self) -> int:
        """Let it end by itself."""
        self.process.communicate()
        return self.process.returncode
