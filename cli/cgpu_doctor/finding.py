"""The findings of checks, and the machine that is checked."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from cgpu_install.engines import SERVICE
from cgpu_install.machine import BOOTED, Machine
from cgpu_node import server

Level = Literal["ok", "note", "warning", "error"]
BY_ROOT = "as root: cgpu doctor"
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")


class Finding(NamedTuple):
    """The result of a check, as one sentence.

    Attributes:
        check: the check that found it; set by ``run_checks``.
        level: ``error``: containers are refused, or not created as they should be; ``warning``:
            they are created, but something else is wrong; ``note``: good to know; ``ok``.
        what: what was found, as a sentence with the value.
        value: that value alone, for programs.
        mend: the command, or other action, that repairs it; empty if nothing needs repair.
    """

    level: Level
    what: str
    value: str = ""
    mend: str = ""
    check: str = ""


class Ground(NamedTuple):
    """The machine to check. Files of the kernel, too, are below its root."""

    machine: Machine
    state_dir: str
    driver_dir: str | None

    @property
    def is_booted(self) -> bool:
        """Whether systemd runs the machine."""
        return self.machine.has(BOOTED)

    @property
    def log(self) -> str:
        """Return the command that shows cgpud's log, or the log file."""
        return f"journalctl -u {SERVICE}" if self.is_booted else f"{self.state_dir}/{server.LOG}"

    @property
    def is_closed(self) -> bool:
        """Whether the state directory belongs to another user, so that its files cannot be read."""
        try:
            return os.stat(self.state_dir).st_uid != os.geteuid() != 0
        except OSError as error:
            return isinstance(error, PermissionError)

    def report_closed(self) -> Finding:
        """Return the finding that the state directory is another user's."""
        what = f"{self.state_dir} is not readable by you"
        return Finding("note", what, self.state_dir, BY_ROOT)

    def by_root(self, command: str) -> str:
        """Return the command; if the state directory is another user's, marked as one for root."""
        return f"as root: {command}" if self.is_closed else command

    def is_served(self) -> bool:
        """Whether a server listens in the state directory, as far as this user sees."""
        try:
            return os.path.isdir(self.state_dir) and server.is_listening(self.state_dir)
        except PermissionError:  # the directory is closed until root's server listens
            return False

    def is_hidden(self, path: str) -> bool:
        """Whether this user may not see if the file exists."""
        try:
            os.stat(self.machine.resolve_path(path))
        except OSError as error:
            return isinstance(error, PermissionError)
        return False

    def read_word(self, path: str) -> str | None:
        """Return the content of a one-word file; None if there is no such file."""
        try:
            with open(self.machine.resolve_path(path)) as file:
                return file.read().strip()
        except OSError:
            return None
