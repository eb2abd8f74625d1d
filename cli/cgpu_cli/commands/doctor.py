"""``cgpu doctor``: what keeps this node from dividing its GPUs, and what repairs that."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cgpu_cli.answer import print_json
from cgpu_env import CgpuError
from cgpu_node.paths import node_state, state_path

if TYPE_CHECKING:
    import argparse

    from cgpu_doctor.finding import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


class Doctor:
    """Check this node and say how to repair what is wrong; exit status 1: an error was found."""

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options for output."""
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument("-q", "--quiet", action="store_true", help="hide what is in order")

    def run(self, given: argparse.Namespace) -> int:
        """Make all checks; nothing is changed."""
        from cgpu_doctor.checks import run_checks
        from cgpu_doctor.finding import LEVELS, Ground
        from cgpu_install.journal import Journal
        from cgpu_install.machine import Machine

        machine = Machine()
        with contextlib.suppress(CgpuError):  # the check of the engines reports it
            machine = Machine(bin_dir=Journal(machine).bin_dir)
        state = node_state(given.state_dir) or state_path(given.state_dir)
        findings = run_checks(Ground(machine, state, given.driver_dir))
        worst = max((f.level for f in findings), key=LEVELS.index)
        if given.json:
            shown = [found._asdict() for found in findings]
            print_json({"worst": worst, "findings": shown})
        else:
            _print_findings([f for f in findings if f.level != "ok" or not given.quiet])
        return 1 if worst == "error" else 0


def _print_findings(findings: list[Finding]) -> None:
    from rich.text import Text

    from cgpu_cli.show.screen import Screen

    console = Screen(soft_wrap=True, highlight=False)
    for found in findings:
        console.print(Text(f"{found.level:>7}", _STYLES[found.level]), end="  ")
        console.print(Text(f"{found.check}: {found.what}"))
        if found.mend:
            console.print(Text(f"{'':7}  -> {found.mend}", "bold"))
