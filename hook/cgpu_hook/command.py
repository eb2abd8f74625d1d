"""The static programs' commands: ``edit``, ``give-back``, ``prestart``, ``precreate``.

Arguments are pairs of ``--name value``, written by our own programs. A refusal is one line on
stderr and exit status 1, as with runc. stdout carries only the answers of edit (``ready`` and the
directory of the share), give-back (``ready``) and precreate (the configuration). crun and podman do
not show a hook's output, so a refusal goes to the system's log too.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, shown
from cgpu_hook.container import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status."""
    try:
        command, options = _parse(arguments)
        _COMMANDS[command](options)
    except CgpuError as error:
        _complain(arguments, str(error), error.hint)
        return _FAILED
    except Exception as error:  # noqa: BLE001 (the container is refused, whatever went wrong)
        from cgpu_env.logline import location

        where = shown(location(error))
        _complain(arguments, f"internal error: {type(error).__name__}: {error} at {where}")
        return _FAILED
    return 0


def _parse(arguments: list[str]) -> tuple[str, dict[str, str]]:
    command, *rest = arguments or [""]
    names, values = rest[::2], rest[1::2]
    if command not in _COMMANDS or len(names) != len(values):
        raise CgpuError(f"expected one of {', '.join(_COMMANDS)} and pairs of --name value")
    return command, {name.removeprefix("--"): v for name, v in zip(names, values, strict=True)}


def _setting(options: dict[str, str]) -> Setting:
    return Setting(options.get("state-dir"), options.get("driver-dir"))


def _edit(options: dict[str, str]) -> None:
    from cgpu_hook.bundle import Creation, edit_bundle

    creation = Creation(
        options["config"],
        options["bundle"],
        options["id"],
        int(options["pid"]),
        options["runtime-dir"],
    )
    edit_bundle(creation, _setting(options), _answer)


def _answer(share: str) -> None:
    """Let the launcher continue (``hook/common/python.c``)."""
    os.write(1, os.fsencode(f"ready {share}\n"))


def _give_back(options: dict[str, str]) -> None:
    from cgpu_node.paths import open_state
    from cgpu_node.shares.registry import Registry

    registry = Registry(open_state(options.get("state-dir")))
    registry.give_back(options["id"], int(options["pid"]), heir=int(options["heir"]))
    _answer("")


def _prestart(options: dict[str, str]) -> None:
    from cgpu_hook.prestart import prestart

    prestart(_setting(options))


def _precreate(options: dict[str, str]) -> None:
    from cgpu_hook.precreate import precreate

    precreate(_setting(options))


_COMMANDS: dict[str, Callable[[dict[str, str]], None]] = {
    "edit": _edit,
    "give-back": _give_back,
    "prestart": _prestart,
    "precreate": _precreate,
}


def _complain(arguments: list[str], message: str, hint: str = "") -> None:
    """One sentence for whoever starts the container, and a line for the system's log."""
    from cgpu_hook.systemlog import ERROR, log

    sentence = " ".join(f"{message} ({hint})".split() if hint else message.split())
    os.write(2, f"cgpu: {sentence}\n".encode("utf-8", "backslashreplace"))
    fields = {"stage": arguments[0] if arguments else "none"}
    if "--id" in arguments[1:-1]:
        fields["container"] = arguments[arguments.index("--id") + 1]
    fields |= {"error": message, "do": hint or "mend what the error names, and start it again"}
    log(ERROR, "container_refused", fields)
