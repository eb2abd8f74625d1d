"""Text in the language of manual pages."""

from __future__ import annotations

import re


def roff(text: str) -> str:
    """``text`` as it stands."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def of_markdown(text: str) -> str:
    """A cell of a table: words in back quotes are bold, links are their words."""
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text.replace("**", ""))
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", roff(plain))


def entry(head: str, text: str) -> str:
    """A term in bold, and what it means; both as they stand."""
    return f".TP\n.B {roff(head)}\n{roff(text)}\n"


def example(what: str, commands: str) -> str:
    """A sentence, and what is typed."""
    return f".PP\n{roff(what)}\n.PP\n.RS 4\n.nf\n{roff(commands)}\n.fi\n.RE\n"


def table(markdown: str, heading: str) -> tuple[list[list[str]], str]:
    """The cells of the first table below a heading, without its head, and the paragraph after."""
    section = markdown.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows, after = section.partition("\n|")[2].split("\n\n")[:2]
    cells = [row.strip("|").split("|") for row in rows.splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in cells], after
