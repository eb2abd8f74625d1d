"""The checks of ``cgpu doctor``, in the order in which they are made and shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cgpu_doctor import driver, kernel, metrics, releases, state, wiring
from cgpu_doctor.finding import BY_ROOT, Finding
from cgpu_env import CgpuError
from cgpu_install.machine import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cgpu_doctor.finding import Ground

CHECKS: dict[str, Callable[[Ground], Iterator[Finding]]] = {
    "configuration": wiring.configuration,
    "driver": driver.driver,
    "entry points": driver.entry_points,
    "glibc": driver.glibc,
    "user namespaces": kernel.user_namespaces,
    "control groups": kernel.cgroups,
    "runtime": wiring.runtime,
    "engines": wiring.engines,
    "state directory": state.directory,
    "leftovers": state.leftovers,
    "shares": state.shares,
    "server": state.server,
    "metrics": metrics.served,
    "releases": releases.environments,
}


def examine(ground: Ground) -> list[Finding]:
    """What all checks find; one that cannot be made is a finding too."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            made = list(check(ground))
        except (CgpuError, OSError) as error:
            hint = error.hint if isinstance(error, CgpuError) else ""
            made = [Finding("error", str(error), mend=hint)]
            if isinstance(error, ClosedError) and os.geteuid() != 0:
                made = [Finding("note", str(error), mend=BY_ROOT)]
        told = {finding.what for finding in findings}
        findings += [found._replace(check=name) for found in made if found.what not in told]
    return findings
