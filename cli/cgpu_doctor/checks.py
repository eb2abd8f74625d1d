"""The checks of ``cgpu doctor``, in the order in which they are made and shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from cgpu_doctor import claims, driver, kernel, metrics, releases, state, users, wiring
from cgpu_doctor.finding import BY_ROOT, Finding, Ground
from cgpu_env import CgpuError
from cgpu_install.machine import ClosedError

CHECKS: dict[str, Callable[[Ground], Iterator[Finding]]] = {
    "configuration": wiring.check_configuration,
    "driver": driver.check_driver,
    "compute mode": driver.check_compute_mode,
    "entry points": driver.check_entry_points,
    "glibc": driver.check_glibc,
    "proxies": driver.check_proxies,
    "user namespaces": kernel.check_user_namespaces,
    "control groups": kernel.check_cgroups,
    "runtime": wiring.check_runtime,
    "engines": wiring.check_engines,
    "state directory": state.check_directory,
    "leftovers": state.check_leftovers,
    "shares": state.check_shares,
    "claims": claims.check_claims,
    "users": users.check_access,
    "accounts": users.check_accounts,
    "server": state.check_server,
    "metrics": metrics.check_metrics,
    "releases": releases.check_releases,
}


_AS_ROOT = "as root: "
_OF_ROOT = (
    *("cgpu install", "cgpu upgrade", "systemctl ", "sysctl ", "/etc/cgpu/runtime", "mount -t "),
    *("apt-get ", "modprobe ", "nvidia-smi -i ", "reboot", "chmod a+r "),
)
"""Words in advice that only root can follow."""


def run_checks(ground: Ground) -> list[Finding]:
    """Return the findings of all checks; a check that fails is a finding too."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            made = list(check(ground))
        except (CgpuError, OSError) as error:
            hint = error.hint if isinstance(error, CgpuError) else ""
            made = [Finding("error", str(error), mend=hint)]
            if isinstance(error, ClosedError) and os.geteuid() != 0:
                made = [Finding("note", str(error), mend=BY_ROOT)]
        known = {finding.what for finding in findings}
        new = [found for found in made if found.what not in known]
        findings += [found._replace(check=name, mend=_by_whom(found.mend)) for found in new]
    return findings


def _by_whom(mend: str) -> str:
    """Return the advice; if this user cannot follow it, with the user who can."""
    if os.geteuid() == 0 or mend.startswith(_AS_ROOT):
        return mend
    return f"{_AS_ROOT}{mend}" if any(word in mend for word in _OF_ROOT) else mend
