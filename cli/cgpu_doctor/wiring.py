"""Checks that engines know cgpu and can start its programs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from cgpu_doctor.finding import BY_ROOT, Finding, Ground, Level
from cgpu_env import CgpuError
from cgpu_install import containerd, dockerd
from cgpu_install.containerd import UnusedError
from cgpu_install.engines import HOOK, RUNTIME, SERVER, SERVICE, Engine
from cgpu_install.entry import NAME
from cgpu_install.journal import Journal
from cgpu_install.machine import ClosedError, Machine
from cgpu_install.plan import PROGRAMS, detect_engines, plan_install
from cgpu_node.settings.config import CONFIG_PATH, load_config
from cgpu_upgrade.environment import UNTOUCHED

_SECONDS = 10
_OF_INTERPRETERS = ("interpreter", "internal error")


def check_configuration(ground: Ground) -> Iterator[Finding]:
    """Check that ``/etc/cgpu/config.toml`` has no mistake."""
    path = ground.machine.resolve_path(CONFIG_PATH)
    try:
        load_config(path)
    except CgpuError as error:
        facts = os.stat(path) if os.path.exists(path) else None
        is_others = facts and (facts.st_uid != 0 or facts.st_mode & 0o022)
        mend = f"chown root: {path} && chmod go-w {path}" if is_others else f"mend {path}"
        if facts and not os.access(path, os.R_OK, effective_ids=True):
            mend = f"chmod a+r {path}"
        yield Finding("error", str(error), path, f"{mend}, then: cgpu doctor")
        return
    if ground.is_hidden(CONFIG_PATH):
        what = f"{CONFIG_PATH} is not readable by you: your commands go by the defaults"
        yield Finding("warning", what, path, f"chmod a+rx {os.path.dirname(CONFIG_PATH)}")
        return
    there = "is understood" if os.path.exists(path) else "is not there: the defaults hold"
    yield Finding("ok", f"{CONFIG_PATH} {there}")


def check_engines(ground: Ground) -> Iterator[Finding]:
    """Check that each engine that is found knows cgpu."""
    there = detect_engines(ground.machine)
    if not there:
        yield Finding("note", "no container engine found: only cgpu-run can be used")
    for engine in there:
        yield from check_engine(ground, engine)
    if not ground.machine.root:
        yield from check_containerds(ground.machine)


def check_engine(ground: Ground, engine: Engine) -> Iterator[Finding]:
    """Report whether one engine knows cgpu, or how to make it known."""
    if engine.units and not ground.is_booted:
        what = f"systemd does not run here: the first container starts {SERVER}, which logs to"
        yield Finding("ok", f"{what} {ground.log}", engine.name)
        return
    install = f"cgpu install {engine.name}"
    machine, journal = ground.machine, Journal(ground.machine)
    try:
        default = any(file.is_default(machine) for file in engine.files(machine))
        plan = plan_install(machine, [engine], journal, forgiving=False, is_default=default)
    except UnusedError as error:
        yield Finding("note", str(error), engine.name)
        return
    except CgpuError as error:
        if isinstance(error, ClosedError) and os.geteuid() != 0:
            yield Finding("note", str(error), engine.name, BY_ROOT)
            return
        yield Finding("error", str(error), engine.name, error.hint or f"mend it, then: {install}")
        return
    own = [change.path for change in plan.changes if change.engine != PROGRAMS]
    links = [change.path for change in plan.changes if change.engine == PROGRAMS]
    if own:
        what = f"{engine.name} does not know this cgpu: {', '.join(own)}"
        # Without the units, the first container starts a server.
        level: Level = "error" if default else "note" if engine.name == "systemd" else "warning"
        yield Finding(level, what, own[0], install)
    elif links:
        what = f"{engine.name} starts {links[0]}, which is not there or not of this cgpu"
        yield Finding("error", what, links[0], install)
    else:
        what = f"{engine.name} knows cgpu{', and has it for its default runtime' * default}"
        yield Finding("ok", what, engine.name)
        yield from _check_units(ground, engine)
    if engine.name == "docker" and not machine.root:
        default = default or any(dockerd.find_options(machine, dockerd.DEFAULT[0]))
        yield from check_dockerd(ground, has_entry=not own, is_default=default)
        yield from check_rootless()


def check_dockerd(ground: Ground, *, has_entry: bool, is_default: bool) -> Iterator[Finding]:
    """Check what a running dockerd uses. Its file may have changed since dockerd read it."""
    machine = ground.machine
    by_systemd = (dockerd.RELOAD, dockerd.RESTART)
    reload, restart = by_systemd if ground.is_booted else (dockerd.SIGNAL, "restart dockerd")
    known = dockerd.query_info("{{.DefaultRuntime}} {{json .Runtimes}}")
    default, _, runtimes = known.partition(" ")
    if has_entry and default and f'"{NAME}"' not in runtimes:
        if option := dockerd.find_file_option(machine):
            what = f"{option} on dockerd's command line: it does not read {dockerd.FILE}"
            entry = json.dumps({"runtimes": {NAME: {"path": machine.program_path(RUNTIME)}}})[1:-1]
            yield Finding("error", what, option, f"add to that file: {entry}")
            return
        what = f"dockerd has not read {dockerd.FILE} since it was changed"
        yield Finding("error", what, "docker", reload)
    elif default and (default == NAME) != is_default:
        what = f"dockerd's default runtime is still {default}, and not what {dockerd.FILE} says"
        mend = reload if is_default else f"{restart} ({dockerd.ENDS})"
        yield Finding("error", what, default, mend)


def check_containerds(machine: Machine) -> Iterator[Finding]:
    """Report each containerd that reads another file than the one that ``cgpu install`` changes."""
    for pid, path in containerd.find_unconfigured(machine):
        what = f"containerd (pid {pid}) reads {path}, which names no runtime of cgpu"
        yield Finding("warning", what, path, containerd.advise_by_hand(machine, path))


def check_rootless() -> Iterator[Finding]:
    """Report each dockerd that is not the machine's own."""
    for pid, uid in dockerd.find_rootless():
        what = f"dockerd (pid {pid}) is user {uid}'s own (rootless): cgpu does not look at its file"
        yield Finding("note", what, str(pid))


def _check_units(ground: Ground, engine: Engine) -> Iterator[Finding]:
    """Check that systemd runs the engine's units."""
    if engine.name == "systemd":
        state = _read_output("systemctl", "is-active", SERVICE)
        if state == "failed":
            yield Finding("error", f"{SERVICE} has failed", state, ground.log)


def check_runtime(ground: Ground) -> Iterator[Finding]:
    """Check that ``cgpu-runtime`` finds a low-level runtime."""
    path = ground.machine.program_path(RUNTIME)
    if ground.is_hidden(path):
        yield Finding("note", f"{path} is not readable by you", path, BY_ROOT)
        return
    if ground.machine.root or not os.path.exists(path):
        yield Finding("note", f"{path} is not there: no engine has cgpu", path)
        return
    done = _run_program(path, "--version")
    if done is None or done.returncode != 0:
        output = "it does not start" if done is None else " ".join(done.stderr.split())
        yield Finding("error", f"{path}: {output}", path, "apt-get install runc")
        return
    yield Finding("ok", f"{path} hands containers to {done.stdout.splitlines()[0]}", path)
    hook = ground.machine.program_path(HOOK)
    done = _run_program(hook, "precreate", "--state-dir", ground.state_dir, given=UNTOUCHED)
    if done is None or done.stdout != UNTOUCHED:
        yield _python_side(hook, "it does not start" if done is None else done.stderr)


def _python_side(hook: str, output: str) -> Finding:
    """Report a failure of the Python side. If cgpu itself refuses, its interpreter is right."""
    first, _, hint = output.partition("\n")
    if first.startswith("cgpu: ") and not any(word in first for word in _OF_INTERPRETERS):
        return Finding("error", first.removeprefix("cgpu: "), hook, hint.strip())
    beside = f"{os.path.dirname(os.path.realpath(hook))}/interpreter"
    mend = f"echo {shlex.quote(sys.executable)} > {shlex.quote(beside)}"
    what = f"the Python side of {hook} fails: {' '.join(output.split())}"
    return Finding("error", what, hook, mend)


def _run_program(*words: str, given: str = "") -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _read_output(*words: str) -> str:
    done = _run_program(*words)
    return "" if done is None else done.stdout.strip()
