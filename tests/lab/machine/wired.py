"""A machine made of files on which cgpu is installed, and the doctor's findings on its engines.

A test replaces ``plan._find_program`` by ``target``: the programs need not be built then.
"""

from __future__ import annotations

from pathlib import Path

from cgpu_doctor import wiring
from cgpu_doctor.finding import Finding, Ground
from cgpu_install.engines import select_engines
from cgpu_install.journal import Journal
from cgpu_install.machine import BOOTED, Machine
from cgpu_install.plan import PROGRAMS, plan_install, plan_uninstall

TARGET = "cgpu_install.plan._find_program"


def target(name: str) -> str:
    """Where a program of cgpu is."""
    return f"/opt/{name}"


def made_below(folder: Path) -> Machine:
    """A machine with systemd and an empty ``/usr/bin``."""
    machine = Machine(str(folder))
    for path in ("/usr/bin", BOOTED):
        Path(machine.resolve_path(path)).mkdir(parents=True)
    return machine


def write(machine: Machine, path: str, text: str) -> None:
    """A file, and the folders above it."""
    configuration = Path(machine.resolve_path(path))
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text(text)


def install(machine: Machine, *names: str, is_default: bool = False) -> None:
    """``cgpu install`` of these engines."""
    journal = Journal(machine)
    plan = plan_install(
        machine, select_engines(names), journal, forgiving=False, is_default=is_default
    )
    journal.install(plan.changes, machine.bin_dir)


def uninstall(machine: Machine, *names: str) -> None:
    """``cgpu uninstall`` of them, and of the programs."""
    journal = Journal(machine)
    plan = plan_uninstall(machine, select_engines(names), journal)
    journal.uninstall(plan.changes, [*names, PROGRAMS])


def findings(machine: Machine, *names: str) -> list[Finding]:
    """What the doctor says of these engines, or of all that are found."""
    ground = Ground(machine, machine.resolve_path("/run/cgpu"), None)
    if not names:
        return list(wiring.check_engines(ground))
    return [found for one in select_engines(names) for found in wiring.check_engine(ground, one)]
