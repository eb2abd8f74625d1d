"""What a check says, and what it looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cgpu_hook.server import LOG
from cgpu_install.engines import SERVICE
from cgpu_install.machine import BOOTED

if TYPE_CHECKING:
    from cgpu_install.machine import Machine

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")


class Finding(NamedTuple):
    """One sentence.

    Attributes:
        check: the check that says it; set by who runs the checks.
        level: ``error``: containers are refused, or not made as they should be; ``warning``: they
            are, and something else is wrong; ``note``: good to know; ``ok``.
        what: what is so, with the value that was found.
        value: that value alone, for programs.
        mend: the command, or what else, that mends it; empty where nothing is to be mended.
    """

    level: Level
    what: str
    value: str = ""
    mend: str = ""
    check: str = ""


class Ground(NamedTuple):
    """What is looked at; files of the kernel are below the machine's root too."""

    machine: Machine
    state_dir: str
    driver_dir: str | None

    @property
    def is_booted(self) -> bool:
        """Whether systemd runs the machine."""
        return self.machine.has(BOOTED)

    @property
    def log(self) -> str:
        """What shows cgpud's log."""
        return f"journalctl -u {SERVICE}" if self.is_booted else f"{self.state_dir}/{LOG}"

    def word(self, path: str) -> str | None:
        """What a one-word file says; None where there is none."""
        try:
            with open(self.machine.at(path)) as file:
                return file.read().strip()
        except OSError:
            return None
