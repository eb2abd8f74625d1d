"""``cgpu get``: rules, weights, caps and shares as the server has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cgpu_cli.answer import print_json
from cgpu_cli.completion import TARGETS
from cgpu_cli.guest import ask_server
from cgpu_env import CgpuError
from cgpu_env.errors import shown

if TYPE_CHECKING:
    import argparse

_RULES = ("policy", "max_inst", "prio_ratio", "free_weight", "containers")
_ALL = "node"  # as `cgpu set` calls it
_NODE = ("default_memsize", "inst_ctl", "upgrade", "version")
_PPM_OF_A_PERCENT = 10_000
_LIST = "cgpu get shows all, cgpu ls what they have"


class Get:
    """Show the rules of the GPUs, and weight, cap, limit and measured share of the containers."""

    name = "get"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which of them, and how."""
        target = parser.add_argument(
            "target",
            metavar="TARGET",
            nargs="?",
            help="a GPU's index or UUID, a container's id, `node`, or a node of the control tree"
            " such as 0/policy (see cgpu ls)",
        )
        target.complete = TARGETS  # type: ignore[attr-defined]
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, given: argparse.Namespace) -> int:
        """Print what the server says."""
        target = given.target
        if target is not None and ("/" in target or target in (_ALL, *_NODE)):
            path = "" if target == _ALL else target
            answer = ask_server(given, {"request": "get", "path": path})
            text = _values(answer)
        else:
            answer = ask_server(given, {"request": "status"})
            answer = answer if target is None else _only(answer, target)
            text = "\n".join(_lines(answer)) or "no GPU is known here: cgpu doctor says why"
        if given.json:
            print_json(answer)
        else:
            print(text)
        return 0


def _values(answer: dict[str, Any]) -> str:
    """As the tree has it; of a folder, each of its files."""
    if "value" in answer:
        return str(answer["value"])
    lines = ((name, line) for name, text in answer["values"].items() for line in text.split("\n"))
    return "\n".join(f"{name}: {line}" for name, line in lines)


def _only(answer: dict[str, Any], target: str) -> dict[str, Any]:
    gpus = [gpu for gpu in answer["gpus"] if target in (str(gpu["index"]), gpu["uuid"])]
    if gpus:
        return {**answer, "gpus": gpus, "containers": []}
    ids = [entry["id"] for entry in answer["containers"] if entry["id"].startswith(target)]
    chosen = [target] if target in ids else ids
    if len(chosen) != 1 or not target:
        what = (
            f"the beginning of {len(chosen)} ids"
            if chosen
            else f"no such GPU or container: {_LIST}"
        )
        raise CgpuError(f"{shown(target)!r}: {what}")
    containers = [entry for entry in answer["containers"] if entry["id"] == chosen[0]]
    return {**answer, "gpus": [], "containers": containers}


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [
        f"GPU {gpu['index']}  {gpu['uuid']}  " + " ".join(f"{key}={gpu[key]}" for key in _RULES)
        for gpu in answer["gpus"]
    ]
    for entry in answer["containers"]:
        own = f"{entry['id']}  weight={entry['weight']} highprio={int(entry['high_priority'])}"
        mark = f" mark={entry['mark']}" if entry.get("mark") else ""
        lines += [f"{own}  GPU {gpu['index']} {_shares(gpu)}{mark}" for gpu in entry["gpus"]]
    return lines


def _shares(gpu: dict[str, Any]) -> str:
    measured = f"{gpu['measured_ppm'] / _PPM_OF_A_PERCENT:.1f}%" if gpu["metered"] else "-"
    estimate = gpu.get("estimated_ppm")
    if estimate is not None:
        measured = f"~{estimate / _PPM_OF_A_PERCENT:.0f}%"
    memory = f"memsize={gpu['memsize']} free={gpu['free_bytes']}"
    return f"limit={gpu['limit_ppm'] / _PPM_OF_A_PERCENT:.1f}% measured={measured} {memory}"
