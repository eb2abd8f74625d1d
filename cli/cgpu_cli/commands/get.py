"""``cgpu get``: rules, weights, caps and shares as the server has them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cgpu_cli.answer import print_json
from cgpu_cli.commands.completers import TARGETS, set_completer
from cgpu_cli.running.guest import ask_server, read_config_notes
from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_node.shares import target

_RULES = ("policy", "max_inst", "prio_ratio", "free_weight", "containers")
_WHOLE_NODE, _EVERY_GPU = "node", "all"  # as `cgpu set` calls them
_NODE = ("default_memsize", "inst_ctl", "upgrade", "version")
_PPM_OF_A_PERCENT = 10_000
_LIST = "cgpu get shows all, cgpu ls what they have"


class Get:
    """Show the rules of the GPUs, and weight, cap, limit and measured share of the containers."""

    name = "get"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the target and the options for output."""
        words = parser.add_argument(
            "target",
            metavar="TARGET",
            nargs="?",
            help="a GPU's index or UUID, or all for every GPU; a container's id or name; `node`; or"
            " a node of the control tree such as 0/policy or ID/weight (see cgpu ls)",
        )
        set_completer(words, TARGETS)
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, given: argparse.Namespace) -> int:
        """Print the server's answer."""
        for note in read_config_notes():
            print(f"cgpu: note: {note}", file=sys.stderr)
        word = given.target
        if word is not None and _is_path(word):
            path = "" if word == _WHOLE_NODE else word
            answer = ask_server(given, {"request": "get", "path": path})
            text = _format_values(answer)
        else:
            answer = ask_server(given, {"request": "status"})
            if not answer["gpus"]:
                raise CgpuError("no GPU is known here", hint="cgpu doctor says why")
            if word is not None and _is_below(answer, word):
                answer = ask_server(given, {"request": "get", "path": word})
                text = _format_values(answer)
            else:
                answer = answer if word is None else _filter_answer(answer, word)
                text = "\n".join(_format_lines(answer))
        if given.json:
            print_json(answer)
        else:
            print(text)
        return 0


def _format_values(answer: dict[str, Any]) -> str:
    """Format an answer as in the control tree: one value, or each file of a folder."""
    if "value" in answer:
        return str(answer["value"])
    lines = ((name, line) for name, text in answer["values"].items() for line in text.split("\n"))
    return "\n".join(f"{name}: {line}" for name, line in lines)


def _is_path(word: str) -> bool:
    """Whether a word is a path of the control tree. A pod's name has slashes too."""
    first, slash, _ = word.lstrip("/").partition("/")
    is_gpu = first.isdecimal() or first.lower().startswith("gpu-")
    return first in (_WHOLE_NODE, *_NODE) or (is_gpu and bool(slash)) or word.startswith("/")


def _is_below(answer: dict[str, Any], word: str) -> bool:
    """Whether a word is a path below a container, without its GPU, such as ``web/weight``."""
    names = _map_names(answer)
    return not target.match_containers(word, names) and bool(
        target.match_containers(word.rpartition("/")[0], names)
    )


def _map_names(answer: dict[str, Any]) -> dict[str, str]:
    """Return the name of each container, by its id."""
    return {entry["id"]: entry.get("name", "") for entry in answer["containers"]}


def _filter_answer(answer: dict[str, Any], word: str) -> dict[str, Any]:
    """Return the part of the answer about the GPU or the container that ``word`` means."""
    if word == _EVERY_GPU:
        return {**answer, "containers": []}
    gpus = {gpu["uuid"]: gpu["index"] for gpu in answer["gpus"]}
    names = _map_names(answer)
    if target.match_gpus(word, gpus):
        uuid = target.find_gpu(word, gpus)
        chosen = [gpu for gpu in answer["gpus"] if gpu["uuid"] == uuid]
        return {**answer, "gpus": chosen, "containers": []}
    if not target.match_containers(word, names):
        raise CgpuError(f"'{printable(word)}': no such GPU or container: {_LIST}")
    id_ = target.find_container(word, names)
    containers = [entry for entry in answer["containers"] if entry["id"] == id_]
    return {**answer, "gpus": [], "containers": containers}


def _format_lines(answer: dict[str, Any]) -> list[str]:
    lines = [
        f"GPU {gpu['index']}  {gpu['uuid']}  " + " ".join(f"{key}={gpu[key]}" for key in _RULES)
        for gpu in answer["gpus"]
    ]
    for entry in answer["containers"]:
        own = f"{entry['id']}  weight={entry['weight']} highprio={int(entry['high_priority'])}"
        if entry.get("kind") == "claim":
            own += printable(f" claim={entry['name']} pods={','.join(entry.get('pods', ()))}", 400)
        mark = f" mark={entry['mark']}" if entry.get("mark") else ""
        lines += [f"{own}  GPU {gpu['index']} {_format_shares(gpu)}{mark}" for gpu in entry["gpus"]]
    return lines


def _format_shares(gpu: dict[str, Any]) -> str:
    measured, estimate = _read_percent(gpu, "measured"), _read_percent(gpu, "estimated")
    used = "-" if measured is None else f"{measured:.1f}%"
    if estimate is not None:
        used = f"~{estimate:.0f}%"
    cap = gpu.get("cap_bytes", gpu.get("memsize"))
    memory = f"memsize={cap} free={gpu['free_bytes']}"
    return f"limit={_read_percent(gpu, 'limit') or 0:.1f}% measured={used} {memory}"


def _read_percent(gpu: dict[str, Any], name: str) -> float | None:
    """Return a part of the GPU's time in percent; a server of release 0.1 sends millionths."""
    if f"{name}_percent" in gpu:
        percent: float | None = gpu[f"{name}_percent"]
        return percent
    ppm = gpu.get(f"{name}_ppm")
    if ppm is None or (name == "measured" and not gpu["metered"]):
        return None
    return float(ppm) / _PPM_OF_A_PERCENT
