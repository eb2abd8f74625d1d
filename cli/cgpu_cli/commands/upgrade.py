"""``cgpu upgrade``: switches the node side to another release and back, under containers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from cgpu_cli.answer import print_json
from cgpu_env import CgpuError, program
from cgpu_node import installation
from cgpu_node.paths import state_path

if TYPE_CHECKING:
    import argparse

    from cgpu_upgrade.upgrade import Outcome


class Upgrade:
    """Switch to another release of cgpu while containers run; --back undoes it."""

    name = "upgrade"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the release to use, and where it is installed."""
        parser.add_argument(
            "source",
            metavar="SOURCE",
            nargs="?",
            help="a wheel, a source directory or anything else that pip accepts; without it,"
            " links, engines and server follow what a package manager has installed",
        )
        parser.add_argument("--back", action="store_true", help="return to the previous release")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="install and check the release, but do not switch to it",
        )
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument(
            "--pip",
            metavar="OPTIONS",
            type=str,
            default="",
            help='for pip, such as --pip="--no-index"',
        )
        parser.add_argument(
            "--prefix",
            metavar="DIR",
            help="the installation to change; that of this command by default",
        )
        parser.add_argument(
            "--layouts",
            action="store_true",
            help="show which files of other releases this one reads",
        )

    def run(self, given: argparse.Namespace) -> int:
        """Switch, or leave everything as it was."""
        if given.layouts:
            from cgpu_upgrade import layouts

            print(json.dumps(layouts.own_layouts().as_json()))
            return 0
        if given.back and given.source:
            raise CgpuError("--back: expected no SOURCE beside it")
        if os.geteuid() != 0:
            raise CgpuError("you are not root, who runs the node side", hint="run it as root")
        program.undo_when_terminated()
        outcome = _run_upgrade(given)
        if given.json:
            fields = outcome._asdict()
            print_json({"dry_run": given.dry_run, "said": fields.pop("output"), **fields})
        else:
            _print_outcome(outcome, given)
        return 0


def _run_upgrade(given: argparse.Namespace) -> Outcome:
    from cgpu_upgrade import upgrade

    state = state_path(given.state_dir)
    if given.back:
        place = _choose_installation(given.prefix, "checkout RELEASE")
        return upgrade.switch_back(place, state, dry=given.dry_run)
    if given.source:
        place, options = _choose_installation(given.prefix), shlex.split(given.pip)
        return upgrade.switch_to_source(place, state, given.source, options, dry=given.dry_run)
    return upgrade.follow_installed(state, dry=given.dry_run)


def _choose_installation(prefix: str | None, by_git: str = "pull") -> installation.Installation:
    """Return the installation to be changed. ``by_git``: the git command that changes a clone.

    Raises:
        CgpuError: pip did not install it in a virtual environment; one sentence says what to use.
    """
    own = os.path.abspath(prefix) if prefix else installation.own_environment()
    if own is None and (clone := installation.find_clone()):
        commands = f"git -C {shlex.quote(clone)} {by_git} && make -C {shlex.quote(clone)} build"
        what = "this cgpu is of a clone, so git has its releases"
        raise CgpuError(f"{what}: {commands}, then: cgpu upgrade")
    if own is None:
        manager = _advise_update(installation.__file__)
        raise CgpuError(
            f"this cgpu is in no virtual environment of its own: {manager}, then: cgpu upgrade"
        )
    if not os.path.isfile(f"{own}/pyvenv.cfg"):
        raise CgpuError(f"--prefix {own}: expected a virtual environment with cgpu in it")
    if os.path.exists(f"{own}/pipx_metadata.json"):
        raise CgpuError("this cgpu is pipx's: pipx upgrade --global cgpu, then: cgpu upgrade")
    if _find_package(own):
        raise CgpuError(f"this cgpu is of a package: {_advise_update(own)}, then: cgpu upgrade")
    return installation.find_installation(own)


def _advise_update(path: str) -> str:
    package = _find_package(path)
    if package:
        return f"apt-get install --only-upgrade {package}"
    return "update it by the pip that installed it"


def _find_package(path: str) -> str:
    """Return the Debian package that a path belongs to; "" if there is none."""
    try:
        done = subprocess.run(
            ["dpkg-query", "--search", path],  # noqa: S607 (of every system with it)
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.partition(":")[0] if done.returncode == 0 else ""


def _print_outcome(outcome: Outcome, given: argparse.Namespace) -> None:
    for line in outcome.output:
        print(line)
    parts = ", ".join(f"{number} of {name}" for name, number in outcome.containers.items())
    if parts:
        print(f"hot: containers go on with the cgpu that made them: {parts}")
    elif given.source or given.back:
        print("cold: no container runs")
    elif outcome.before == outcome.after and not (outcome.output or outcome.server):
        print(f"nothing to change: cgpu {outcome.after} is installed, and no cgpud runs")
        return
    if given.dry_run:
        would = f"change from {outcome.before} to {outcome.after}"
        if outcome.before == outcome.after and not (given.source or given.back):
            serves = outcome.server or outcome.containers
            would = f"start cgpud {outcome.after} anew" if serves else "change this"
        print(f"would {would}; nothing was changed")
        return
    if outcome.back:
        print(f"cgpu {outcome.after} is in use; back to {outcome.back}: cgpu upgrade --back")
    if outcome.server:
        print(f"cgpud {outcome.after} serves, process {outcome.server}")
