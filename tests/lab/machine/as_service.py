"""Run a command under the restrictions of deploy/cgpud.service, without systemd.

Capabilities, new privileges, system calls and the limit of niceness are as systemd would set them;
its private mounts and network are not made. As a program: ``as_service.py COMMAND ...``.
"""

from __future__ import annotations

import configparser
import contextlib
import ctypes
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "cgpud.service"
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO


def settings() -> dict[str, str]:
    """The unit's section ``[Service]``."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read(UNIT)
    return dict(unit["Service"])


def capabilities() -> list[str]:
    """Those that the service keeps, such as ``chown``."""
    kept = settings()["CapabilityBoundingSet"].split()
    return [name.removeprefix("CAP_").lower() for name in kept]


def nice_limit() -> int:
    """How far its threads may raise their priority, as getrlimit(2) counts it."""
    return 20 - int(settings()["LimitNICE"])


def as_service(command: list[str]) -> list[str]:
    """``command`` as one that runs under it; it keeps its process id."""
    from lab.runs.packages import ensure_packages  # noqa: PLC0415 (not when run as a program)

    ensure_packages()
    return [sys.executable, str(Path(__file__).resolve()), *command]


def _system_calls(name: str) -> set[str]:
    """All system calls in a set of systemd's, such as ``@system-service``."""
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    )
    words = [line.split("#")[0].strip() for line in done.stdout.splitlines()[1:]]
    found = [_system_calls(word) if word.startswith("@") else {word} for word in words if word]
    return set().union(*found)


def _filter(names: set[str]) -> None:
    library = ctypes.CDLL("libseccomp.so.2")  # systemd's own
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.ENOSYS))
    for name in names:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # this architecture has it
            assert library.seccomp_rule_add(context, _ALLOW, number, 0) == 0, name
    assert library.seccomp_load(context) == 0


def main(command: list[str]) -> None:
    """Become ``command``."""
    unit = settings()
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["SystemCallErrorNumber"] == "ENOSYS"
    with contextlib.suppress(ValueError):  # root without CAP_SYS_RESOURCE, as in many containers
        resource.setrlimit(resource.RLIMIT_NICE, (nice_limit(), nice_limit()))
    _filter(_system_calls("@default") | _system_calls(unit["SystemCallFilter"]))
    kept = ",".join(f"+{name}" for name in capabilities())
    os.execvp(
        "setpriv", ["setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}", "--", *command]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
