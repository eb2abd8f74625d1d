"""Checks of the kernel: user namespaces, control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cgpu_doctor.finding import Finding, Ground

# Setting: the value that keeps users other than root from namespaces, and the one that allows them.
_SWITCHES = {
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
_CGROUPS = "/sys/fs/cgroup"


def check_user_namespaces(ground: Ground) -> Iterator[Finding]:
    """Check that ``cgpu-run`` can hide the driver from a user's program."""
    closed = False
    for name, (bad, good) in _SWITCHES.items():
        value = ground.read_word(f"/proc/sys/{name.replace('.', '/')}")
        if value == bad:
            closed = True
            what = f"{name} = {value}: without root, cgpu-run can only use the library path"
            yield Finding("warning", what, value, f"sysctl -w {name}={good}")
    if not closed:
        yield Finding("ok", "no setting of the kernel keeps users from namespaces, for cgpu-run")


def check_cgroups(ground: Ground) -> Iterator[Finding]:
    """Check that both low-level runtimes can make containers."""
    has = ground.machine.has
    if has(f"{_CGROUPS}/cgroup.controllers"):
        yield Finding("ok", "control groups of version 2", "2")
    elif ground.read_word(f"{_CGROUPS}/unified/cgroup.controllers"):
        mend = "ln -sfn $(command -v runc) /etc/cgpu/runtime"
        what = "control groups of both versions, hybrid: crun refuses them"
        if _is_crun(ground):
            yield Finding("warning", what, "hybrid", mend)
        else:
            yield Finding("note", f"{what}, and runc is used", "hybrid")
    elif has(f"{_CGROUPS}/memory", f"{_CGROUPS}/unified", f"{_CGROUPS}/cpu"):
        yield Finding("ok", "control groups of version 1", "1")
    else:
        mend = f"mount -t cgroup2 none {_CGROUPS}"
        yield Finding("error", "no control groups are mounted", "none", mend)


def _is_crun(ground: Ground) -> bool:
    chosen = ground.machine.resolve_path("/etc/cgpu/runtime")
    if os.path.lexists(chosen):
        return os.path.basename(os.path.realpath(chosen)) == "crun"
    return not ground.machine.has_program("runc")
