"""Completion of commands' words in shells."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from cgpu_node.facts import engines
from cgpu_node.settings.rules import POLICIES

# The command that a shell runs to complete a GPU, a container or a folder of the control tree.
_COMMAND = "cgpu completion targets 2>/dev/null"
TARGETS = {"bash": "_cgpu_targets", "zsh": "_cgpu_targets", "fish": f"({_COMMAND})"}
# The other engines of cgpu_install, which takes long to import.
_OTHERS = ("nvidia", "systemd", "metrics", "podman-hooks", "crio-hooks")
ENGINE_NAMES = " ".join((*(row.name for row in engines.ENGINES if row.config), *_OTHERS))
ENGINES = {"bash": "_cgpu_engines", "zsh": f"({ENGINE_NAMES})", "fish": ENGINE_NAMES}
_BY_NAME = " ".join(f"policy={name}" for name in POLICIES)
SETTINGS = {"bash": "_cgpu_settings", "zsh": f"({_BY_NAME})", "fish": _BY_NAME}
# For bash, policy=fixed is three words, and its function is asked to complete the last one alone.
_BASH_SETTINGS = f"""
_cgpu_settings() {{
    local word=$1 before=${{COMP_WORDS[COMP_CWORD-1]}}
    [ "$word" = = ] && word= before==
    if [ "$before" = = ]; then
        compgen -W "{" ".join(POLICIES)}" -- "$word"
    else
        compgen -W "{_BY_NAME}" -- "$word"
    fi
}}"""
PREAMBLES = {
    "bash": f'_cgpu_targets() {{ compgen -W "$({_COMMAND})" -- "$1"; }}\n'
    f'_cgpu_engines() {{ compgen -W "{ENGINE_NAMES}" -- "$1"; }}' + _BASH_SETTINGS,
    "zsh": f'_cgpu_targets() {{ compadd "$@" -- ${{(f)"$({_COMMAND})"}} }}',
}


def set_completer(action: argparse.Action, candidates: Mapping[str, object]) -> None:
    """Complete values of ``action`` by ``candidates``, one for each shell, in the form of shtab."""
    action.complete = candidates  # type: ignore[attr-defined]
