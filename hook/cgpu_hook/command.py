"""The static programs' commands: ``edit``, ``give-back``, ``prestart``, ``precreate``, ``claim``.

Arguments are pairs of ``--name value``, written by our own programs. A refusal is one line on
stderr and exit status 1, as with runc. stdout carries only the answers of edit (``ready`` and the
directory of the share), give-back (``ready``) and precreate (the configuration). crun gives hooks
no stderr, so there a refusal goes to crun's own, which CRI-O shows. podman and containerd do not
show that, so refusals go to the system's log as well.
"""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import CgpuError, printable
from cgpu_hook.plan import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status."""
    try:
        command, options = _parse_arguments(arguments)
        _COMMANDS[command](options)
    except CgpuError as error:
        _report_refusal(arguments, str(error), error.hint)
        return _FAILED
    except Exception as error:  # noqa: BLE001 (the container is refused, whatever went wrong)
        from cgpu_env.logline import locate_error

        where = printable(locate_error(error))
        _report_refusal(arguments, f"internal error: {type(error).__name__}: {error} at {where}")
        return _FAILED
    return 0


def _parse_arguments(arguments: list[str]) -> tuple[str, dict[str, str]]:
    command, *rest = arguments or [""]
    names, values = rest[::2], rest[1::2]
    if command not in _COMMANDS or len(names) != len(values):
        raise CgpuError(f"expected one of {', '.join(_COMMANDS)} and pairs of --name value")
    return command, {name.removeprefix("--"): v for name, v in zip(names, values, strict=True)}


def _make_setting(options: dict[str, str]) -> Setting:
    return Setting(options.get("state-dir"), options.get("driver-dir"))


def _run_edit(options: dict[str, str]) -> None:
    from cgpu_hook.bundle import Creation, edit_bundle

    creation = Creation(
        options["config"],
        options["bundle"],
        options["id"],
        int(options["pid"]),
        options["runtime-dir"],
    )
    edit_bundle(creation, _make_setting(options), _answer_launcher)


def _answer_launcher(share: str) -> None:
    """Inform the launcher that it may continue (``hook/common/python.c``)."""
    os.write(1, os.fsencode(f"ready {share}\n"))


def _run_give_back(options: dict[str, str]) -> None:
    from cgpu_node.paths import open_state
    from cgpu_node.shares.registry import Registry

    registry = Registry(open_state(options.get("state-dir")))
    registry.give_back(options["id"], int(options["pid"]), heir=int(options["heir"]))
    _answer_launcher("")


def _run_prestart(options: dict[str, str]) -> None:
    from cgpu_hook.prestart import cap_container

    cap_container(_make_setting(options))


def _run_precreate(options: dict[str, str]) -> None:
    from cgpu_hook.precreate import edit_stdin

    edit_stdin(_make_setting(options))


def _run_claim(options: dict[str, str]) -> None:
    from cgpu_hook.claim import join_claim

    join_claim(options["claim"], _make_setting(options))


_COMMANDS: dict[str, Callable[[dict[str, str]], None]] = {
    "edit": _run_edit,
    "give-back": _run_give_back,
    "prestart": _run_prestart,
    "precreate": _run_precreate,
    "claim": _run_claim,
}


def _report_refusal(arguments: list[str], message: str, hint: str = "") -> None:
    """Write one sentence for whoever starts the container, and a line to the system's log."""
    from cgpu_hook.systemlog import ERROR, log

    sentence = " ".join(f"{message} ({hint})".split() if hint else message.split())
    _write_to_engine(f"cgpu: {sentence}\n".encode("utf-8", "backslashreplace"))
    fields = {"stage": arguments[0] if arguments else "none"}
    if "--id" in arguments[1:-1]:
        fields["container"] = arguments[arguments.index("--id") + 1]
    fields |= {"error": message, "do": hint or "mend what the error names, and start it again"}
    log(ERROR, "container_refused", fields)


def _write_to_engine(line: bytes) -> None:
    """Write to stderr; if that is /dev/null, to the pipe that is the runtime's stderr."""
    path = f"/proc/{os.getppid()}/fd/2"
    try:
        if os.path.samestat(os.fstat(2), os.stat(os.devnull)) and _is_pipe(path):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fd, line)
            return
    except OSError:  # nobody reads it any more, or the runtime has ended
        pass
    os.write(2, line)


def _is_pipe(path: str) -> bool:
    return stat.S_ISFIFO(os.stat(path).st_mode)
