"""Wrap the prose of Markdown files at 100 columns: ``python deploy/rewrap.py [--check] FILE...``.

Paragraphs and list items are wrapped. Code, tables, headings, pictures, comments and generated
sections stay as they are. ``--check`` names the files that are not wrapped, and changes none.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

COLUMNS = 100
_FENCE = re.compile(r"\s*(```|~~~)|<!-- \w+: (begin|end) -->")  # a program writes what is between
_ITEM = re.compile(r"\s*([-*+]|\d+[.)]) +")
_STAYS = re.compile(r"\s*$|\s*[|#>]|!\[|<!--|    +\S")
# No line breaks in code, links and before %, nor where the next line would begin like a list.
_UNIT = re.compile(
    r"(?:`[^`]+`|!?\[[^\]]*\]\([^)]*\)|\S)+(?: +(?:[-+*#>|]+|%[.,;:)]*|\d+[.)])(?= |$))*"
)


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    lines, line = [], first
    for unit in _UNIT.findall(text):
        if line.strip() and line != first and len(line) + 1 + len(unit) > COLUMNS:
            lines.append(line)
            line = indent + unit
        else:
            line += unit if line in {first, indent} else f" {unit}"
    return [*lines, line]


def rewrap(text: str) -> str:
    """Return the same document with its prose wrapped."""
    out: list[str] = []
    block: list[str] = []
    fenced = False

    def end() -> None:
        if block:
            item = _ITEM.match(block[0])
            first = item[0] if item else re.match(r"\s*", block[0])[0]  # type: ignore[index]
            words = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
            out.extend(_wrapped(words, first, " " * len(first)))
            block.clear()

    for line in text.splitlines():
        fence = _FENCE.match(line)
        stays = not block and _STAYS.match(line) if line.startswith("    ") else _STAYS.match(line)
        if fenced or fence or (stays and not (_ITEM.match(line) and line.strip())):
            end()
            out.append(line)
            fenced ^= bool(fence)
        else:
            if _ITEM.match(line):
                end()
            block.append(line)
    end()
    return "\n".join(out) + "\n"


def _run(arguments: list[str]) -> int:
    check, names = "--check" in arguments, [each for each in arguments if each != "--check"]
    texts = {name: Path(name).read_text() for name in names}
    odd = {name: new for name, text in texts.items() if (new := rewrap(text)) != text}
    for name, new in odd.items():
        if check:
            print(f"{name}: prose is not wrapped at {COLUMNS} columns: make format")
        else:
            Path(name).write_text(new)
    return int(check and bool(odd))


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
