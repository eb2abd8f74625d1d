"""Write the manual pages, ``docs/man``, from the programs' own command lines and tables.

``make man`` runs it; a test holds the pages against what it would write. What no program says of
itself stands here, in roff.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from argparse_manpage.manpage import Manpage

from cgpu_cli.options import USAGE
from cgpu_hook import config

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "man"
_SEE_ALSO = ("cgpu(1)", "cgpu-run(1)", "cgpu-smi(1)", "cgpu.toml(5)", "cgpud(8)", "cgpu-runtime(8)")

_STATUS = """
.SH EXIT STATUS
0 done; 2 refused, with one sentence that says what is wrong and what is allowed; 1, of
.BR "cgpu doctor" ,
an error was found.
"""
_FILES = """
.SH FILES
.TP
.I /etc/cgpu/config.toml
settings of the node, see
.BR cgpu.toml (5)
.TP
.I /run/cgpu
state: containers, their limits and ledgers, the server's socket; of a user
.I $XDG_RUNTIME_DIR/cgpu
.TP
.I /run/cgpu_km
settings and memory of containers as files, while cgpud runs
.TP
.I /var/lib/cgpu
what
.B cgpu install
has changed, and what was there before
"""
_RUNTIME = """\
.SH NAME
cgpu-runtime, cgpu-hook \\- make containers with a share of a GPU
.SH SYNOPSIS
.B cgpu-runtime
[\\fB\\-\\-cgpu\\-state\\-dir\\fR \\fIDIR\\fR] [\\fB\\-\\-cgpu\\-driver\\-dir\\fR \\fIDIR\\fR]
[\\fB\\-\\-cgpu\\-runtime\\fR \\fIPROGRAM\\fR] \\fIARGUMENT\\fR...
.br
.B cgpu-hook
.BR precreate | prestart | poststop
.SH DESCRIPTION
Container engines start
.B cgpu-runtime
in place of runc or crun, which it hands everything to. Before a container is created whose
environment has ALIYUN_COM_GPU_MEM_CONTAINER, its share is reserved, and what holds it to that is
added to its configuration. One that cannot be held to its share is not created.
.PP
.B cgpu-hook
does the same for engines that only know hooks, and lets go of the share when a container has ended.
.PP
.B cgpu install
tells engines of them. The low-level runtime is
.I /etc/cgpu/runtime
if there is such a link, else the first runc or crun of the usual places.
.SH OPTIONS
.TP
\\fB\\-\\-cgpu\\-state\\-dir\\fR \\fIDIR\\fR
where state is kept
.TP
\\fB\\-\\-cgpu\\-driver\\-dir\\fR \\fIDIR\\fR
where the driver's libraries are
.TP
\\fB\\-\\-cgpu\\-runtime\\fR \\fIPROGRAM\\fR
the low-level runtime
.PP
All others are the low-level runtime's.
"""


class Parsed(NamedTuple):
    """A program whose command line is an ``argparse`` parser."""

    program: str
    section: int
    module: str
    what: str
    more: str


PARSED = (
    Parsed("cgpu", 1, "cgpu_cli.commands", "share GPUs between containers", _STATUS + _FILES),
    Parsed("cgpu-smi", 1, "cgpu_cli.smi", "show who uses the GPUs, and what they may use", ""),
    Parsed("cgpud", 8, "cgpu_server.main", "divide the time of a node's GPUs", _FILES),
)


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    made = {f"{each.program}.{each.section}": _parsed(each) for each in PARSED}
    made["cgpu-run.1"] = _page("cgpu-run", 1, _run())
    made["cgpu-runtime.8"] = _page("cgpu-runtime", 8, _RUNTIME + _FILES)
    made["cgpu-hook.8"] = ".so man8/cgpu-runtime.8\n"
    made["cgpu.toml.5"] = _page("cgpu.toml", 5, _configuration())
    return made


def _page(name: str, section: int, body: str) -> str:
    others = [page for page in _SEE_ALSO if page != f"{name}({section})"]
    also = ",\n".join(f".BR {page.replace('(', ' (')}" for page in others).replace(",\n", " ,\n")
    text = f'.TH {name.upper()} {section} "" "cgpu" "cgpu"\n{body.strip()}\n.SH SEE ALSO\n{also}\n'
    return re.sub(r"\n{2,}", "\n.sp\n", text)  # roff has no empty lines


def _parsed(page: Parsed) -> str:
    parser = import_module(page.module).arguments()
    made = str(Manpage(parser, format="pretty", _data={"description": page.what}))
    body = made[made.index(".SH NAME") :].replace("``", '"').replace(".SH COMMENTS", ".SH NOTES")
    name = f".SH NAME\n{page.program} \\- {page.what}\n"
    body = re.sub(r"\.SH NAME\n.*\n(?=\.SH)", lambda _: name, body)
    return _page(page.program, page.section, body + page.more)


def _run() -> str:
    usage, what, options, status = USAGE.split("\n\n")
    synopsis = usage.removeprefix("usage: ").removeprefix("cgpu-run")
    entries = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in options.splitlines()]
    listed = "".join(f".TP\n.B {_roff(name)}\n{_roff(text)}\n" for name, text in entries)
    return (
        ".SH NAME\ncgpu-run \\- run a program with a share of the GPUs\n"
        f".SH SYNOPSIS\n.B cgpu-run\n{_roff(synopsis.strip())}\n"
        f".SH DESCRIPTION\n{_roff(what)} No container and no root is needed.\n"
        f".SH OPTIONS\n{listed}"
        f".SH EXIT STATUS\n{_roff(status.partition(': ')[2].strip())}\n"
    )


def _configuration() -> str:
    defaults = config.Config()
    entries = [
        f".TP\n.BR {table}.{key}\n{_roff(allowed)}; {_default(getattr(defaults, key))}\n"
        for key, (table, allowed, _) in config._KEYS.items()  # noqa: SLF001
    ]
    example = (ROOT / "deploy" / "config.toml").read_text()
    return (
        ".SH NAME\ncgpu.toml \\- settings of a node for cgpu\n"
        f".SH SYNOPSIS\n.I {config.CONFIG_PATH}\n"
        ".SH DESCRIPTION\nThe file is TOML, belongs to root, and nobody else can write to it. A"
        " server that runs follows it; one that is not understood is refused with a sentence, and"
        " no container is made meanwhile.\n"
        f".SH KEYS\n{''.join(entries)}.SH EXAMPLE\n.nf\n{_roff(example)}.fi\n{_FILES}"
    )


def _default(value: object) -> str:
    shown = str(value).lower() if isinstance(value, bool) else value
    return "not set by default" if value is None else f"{shown} by default"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def main() -> None:
    """Write them, and remove what is no page any more."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / folder) for folder in (".", "native", "shim", "hook", "cli")]
    main()
