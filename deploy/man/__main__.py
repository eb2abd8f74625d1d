"""Write the manual pages, ``docs/man``, from the programs' own command lines and tables.

``make man`` runs it; a test compares the pages with what it would write. The variables of a
container and the policies are the README's tables. Text that no program has is in this file.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from argparse_manpage.manpage import Manpage
from examples import of_page
from roff import entry, example, of_markdown, roff, table

from cgpu_cli.running.options import USAGE
from cgpu_node.settings import config
from cgpu_node.settings.rules import RANGES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "man"
_SEE_ALSO = (
    *("cgpu(1)", "cgpu-run(1)", "cgpu-smi(1)", "cgpu.toml(5)", "cgpu(7)"),
    *("cgpud(8)", "cgpu-runtime(8)"),
)

_STATUS = """
.SH EXIT STATUS
0: done. 2: refused, with one sentence on what is wrong and what is allowed. 1:
.B cgpu doctor
found an error.
"""
_FILES = """\
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
has changed, and the previous content
.TP
.I /usr/share/doc/cgpu
documents of the Debian package; those of an environment are in its
.IR share ;
.B cgpu help
shows where
.TP
.I /usr/share/cgpu
in the same way: alert rules for Prometheus, a dashboard for Grafana, a RuntimeClass for Kubernetes
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
instead of runc or crun, and it passes everything on to them. Before it creates a container whose
environment has ALIYUN_COM_GPU_MEM_CONTAINER, it reserves the container's share, and adds what
enforces the share to its configuration. It creates no container whose share it cannot enforce.
.PP
.B cgpu-hook
does the same for engines that only know hooks, and gives the share back when a container ends.
.PP
.B cgpu install
adds both programs to engines. The low-level runtime is
.I /etc/cgpu/runtime
if there is such a link, otherwise the first runc or crun in one of the usual directories.
.SH OPTIONS
.TP
\\fB\\-\\-cgpu\\-state\\-dir\\fR \\fIDIR\\fR
the state directory
.TP
\\fB\\-\\-cgpu\\-driver\\-dir\\fR \\fIDIR\\fR
the directory of the driver's libraries
.TP
\\fB\\-\\-cgpu\\-runtime\\fR \\fIPROGRAM\\fR
the low-level runtime
.PP
All other options are the low-level runtime's.
"""

# In addition to the variables of a container, which are in the README's table.
_VARIABLES = {
    "CGPU_STATE_DIR": "where commands and cgpud keep state, unless the command line names a"
    " directory",
    "CGPU_DRIVER_DIR": "where commands and cgpud find libcuda.so.1 and libnvidia-ml.so.1, unless"
    " the command line names a directory",
    "CGPU_LOG": "off: in a program with a share, cgpu writes nothing to standard error",
    "CUDA_VISIBLE_DEVICES": "of who starts cgpu-run: the program gets these GPUs and no others, and"
    " none if the list is empty, -1, or names none. It is read as the driver reads it. --gpus"
    " chooses among these GPUs, in its own order, and is refused if it names another. The program"
    " finds their numbers in it, which are those of nvidia-smi",
    "CUDA_DEVICE_ORDER": "of who starts cgpu-run: what numbers in CUDA_VISIBLE_DEVICES mean. The"
    " program finds PCI_BUS_ID, so that numbers mean the same to CUDA and to nvidia-smi",
    "NVIDIA_VISIBLE_DEVICES": "of a container: its GPUs if ALIYUN_COM_GPU_VISIBLE_DEVICES is not"
    " set; cgpu is off for the container if this is none, void or empty",
    "XDG_RUNTIME_DIR": "of a user other than root: state is in its subdirectory cgpu, unless"
    " the command line or, for commands and cgpud, CGPU_STATE_DIR names a directory",
}
_OF_COMMANDS = ("CGPU_STATE_DIR", "CGPU_DRIVER_DIR", "XDG_RUNTIME_DIR")
_ENVIRONMENT = {
    "cgpu.1": _OF_COMMANDS,
    "cgpu-smi.1": _OF_COMMANDS,
    "cgpu-run.1": ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *_OF_COMMANDS, "CGPU_LOG"),
    "cgpud.8": _OF_COMMANDS,
    "cgpu-runtime.8": ("XDG_RUNTIME_DIR",),
    "cgpu.toml.5": (),
    "cgpu.7": tuple(_VARIABLES),
}
_OF_CONTAINERS = """\
A container states what it asks for in its own environment, see
.BR cgpu (7).
"""
_OVERVIEW = """\
.SH NAME
cgpu \\- shares of GPUs for containers: variables, policies, examples
.SH DESCRIPTION
A container made by
.BR cgpu-runtime (8)
gets a part of the memory of each of its GPUs, never more, and a part of the GPU's time. It asks
for them with variables in its environment. A program under
.BR cgpu-run (1)
gets the same with options.
.BR cgpud (8)
divides the time; the first command or container that needs the server starts it.
.PP
An invalid value never yields an unlimited container: creation fails, with a sentence that names
the variable, the value and what is allowed. A misspelt ALIYUN_COM_GPU_* is refused too.
.PP
If a command line has an option or a setting twice, the last one counts.
"""


class Parsed(NamedTuple):
    """A program whose command line is an ``argparse`` parser."""

    module: str
    what: str
    more: str = ""


PARSED = {
    "cgpu.1": Parsed("cgpu_cli.commands.commands", "share GPUs between containers", _STATUS),
    "cgpu-smi.1": Parsed("cgpu_cli.smi", "show who uses the GPUs, and what they may use"),
    "cgpud.8": Parsed("cgpu_server.main", "divide the time of a node's GPUs"),
}


def pages() -> dict[str, str]:
    """Return every page by its file's name."""
    made = {name: _page(name, _parsed(name, program)) for name, program in PARSED.items()}
    made["cgpu-run.1"] = _page("cgpu-run.1", _run())
    made["cgpu-runtime.8"] = _page("cgpu-runtime.8", _RUNTIME)
    made["cgpu-hook.8"] = ".so man8/cgpu-runtime.8\n"
    made["cgpu.toml.5"] = _page("cgpu.toml.5", _configuration())
    made["cgpu.7"] = _page("cgpu.7", _OVERVIEW)
    return made


def _page(name: str, body: str) -> str:
    title, _, section = name.rpartition(".")
    others = [page for page in _SEE_ALSO if page != f"{title}({section})"]
    also = " ,\n".join(f".BR {page.replace('(', ' (')}" for page in others)
    parts = (body, _environment(name), _FILES, f".SH EXAMPLES\n{_examples(name)}")
    whole = "\n".join(part.strip() for part in parts)
    text = f'.TH {title.upper()} {section} "" "cgpu" "cgpu"\n{whole}\n.SH SEE ALSO\n{also}\n'
    return re.sub(r"\n{2,}", "\n.sp\n", text)  # roff has no empty lines


def _environment(name: str) -> str:
    """Return the variables that this program reads; on the overview page, also the policies."""
    own = "".join(entry(each, _VARIABLES[each]) for each in _ENVIRONMENT[name])
    if name != "cgpu.7":
        return f".SH ENVIRONMENT\n{own}.PP\n{_OF_CONTAINERS}"
    readme = (ROOT / "README.md").read_text()
    asked = [
        f".TP\n{of_markdown(variable)}\n{of_markdown(meaning)}; for example {of_markdown(value)}\n"
        for variable, value, meaning in table(readme, "Ask for a share")[0]
    ]
    listed, rest = table(readme, "Share the GPU's time")
    policies = [
        f".TP\n.B {of_markdown(number)} {of_markdown(title)}\n{of_markdown(meaning)}\n"
        for number, title, meaning in listed
    ]
    return (
        f".SH ENVIRONMENT\n{''.join(asked)}{own}"
        f".SH POLICIES\n{''.join(policies)}.PP\n{of_markdown(rest)}\n"
    )


def _examples(name: str) -> str:
    if name == "cgpu.toml.5":
        return f".nf\n{roff((ROOT / 'deploy' / 'config.toml').read_text())}.fi\n"
    return "".join(example(*each) for each in of_page(name))


def _parsed(name: str, program: Parsed) -> str:
    parser = import_module(program.module).build_parser()
    if name == "cgpu.1":
        parser.epilog = None  # where this very clone has its files
    made = str(Manpage(parser, format="pretty", _data={"description": program.what}))
    body = made[made.index(".SH NAME") :].replace("``", '"').replace(".SH COMMENTS", ".SH NOTES")
    head = f".SH NAME\n{name.rpartition('.')[0]} \\- {program.what}\n"
    return re.sub(r"\.SH NAME\n.*\n(?=\.SH)", lambda _: head, body) + program.more


def _run() -> str:
    usage, what, options, status = USAGE.split("\n\n")
    synopsis = usage.removeprefix("usage: ").removeprefix("cgpu-run")
    entries = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in options.splitlines()]
    return (
        ".SH NAME\ncgpu-run \\- run a program with a share of the GPUs\n"
        f".SH SYNOPSIS\n.B cgpu-run\n{roff(synopsis.strip())}\n"
        f".SH DESCRIPTION\n{roff(what)} No container and no root is needed.\n"
        f".SH OPTIONS\n{''.join(entry(name, text) for name, text in entries)}"
        f".SH EXIT STATUS\n{roff(status.partition(': ')[2].strip())}\n"
    )


def _configuration() -> str:
    defaults = config.Config()
    entries = [
        f".TP\n.BR {table}.{key}\n{roff(allowed)}; {_default(getattr(defaults, key))}\n"
        for key, (table, allowed, _) in config._KEYS.items()  # noqa: SLF001
    ]
    of_one = f"{', '.join(RANGES)} of one GPU, by its index or its full UUID"
    entries.append(f".TP\n.B [gpu.0]\n{roff(of_one)}; those of node by default\n")
    return (
        ".SH NAME\ncgpu.toml \\- settings of a node for cgpu\n"
        f".SH SYNOPSIS\n.I {config.CONFIG_PATH}\n"
        ".SH DESCRIPTION\nThe file is TOML, belongs to root, and must be writable by root alone."
        " A running server applies changes. An invalid file is refused with a sentence, and no"
        " container is created until it is corrected.\n"
        f".SH KEYS\n{''.join(entries)}"
    )


def _default(value: object) -> str:
    shown = str(value).lower() if isinstance(value, bool) else value
    return "not set by default" if value is None else f"{shown} by default"


def main() -> None:
    """Write the pages, and remove files that are no longer pages."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
