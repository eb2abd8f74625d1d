"""The command line of ``cgpu-run``, read without ``argparse``, which takes 8 ms to import."""

from __future__ import annotations

from cgpu_env.errors import CgpuError, find_nearest, printable
from cgpu_env.record import NamedTuple
from cgpu_env.request import HIGH_PRIO, MEM_CONTAINER, MEM_DEV, VISIBLE, WEIGHT
from cgpu_env.values import split_items
from cgpu_env.version import VERSION
from cgpu_node.paths import DRIVER_VARIABLE, STATE_VARIABLE, read_variable
from cgpu_node.settings import rules

USAGE = """\
usage: cgpu-run --mem SIZE [options] [--] PROGRAM [ARGUMENT...]

Run PROGRAM with a share of the GPUs' memory, and no more. If CUDA_VISIBLE_DEVICES is set, these
are its GPUs, and --gpus is refused if it names another.

  --mem SIZE         cap on each GPU: 6GiB, 512MiB, 40% or 6/15 of it; 3,1/15 or 6GiB,6/15 on two
  --weight N         compute weight, from 1 to the GPU's max_inst (20); 1 by default
  --high-prio        high priority: goes first when it has work
  --policy POLICY    compute policy, such as fixed or 3; refused if others use the GPU under another
  --gpus LIST        indices or UUIDs in the order the program sees them; all by default
  --driver-dir DIR   take libcuda.so.1 and libnvidia-ml.so.1 from DIR; else CGPU_DRIVER_DIR
  --state-dir DIR    keep state in DIR, with an account of its own; else CGPU_STATE_DIR
  --no-namespaces    use no mount namespace: weaker; it says what it does not cover
  --version          show the release and exit
  -h, --help         show this and exit

Exit status: PROGRAM's own; 2 if cgpu-run refuses; 126 or 127 if PROGRAM cannot be run.
"""

VALUES = ("mem", "weight", "policy", "gpus", "driver-dir", "state-dir")
FLAGS = ("high-prio", "no-namespaces", "version", "help")


class Options(NamedTuple):
    """The options as the user wrote them, and ``program`` with its arguments.

    Only the form of the options is checked. ``policy_word`` is the policy as it was written.
    ``answer`` is text to print instead of running anything.
    """

    mem: str
    weight: str | None
    high_prio: bool
    policy: int | None
    policy_word: str | None
    gpus: str | None
    driver_dir: str | None
    state_dir: str | None
    namespaces: bool
    answer: str | None
    program: list[str]


def help_of(name: str) -> str:
    """Return the text about an option in the usage, in the form for ``argparse``."""
    lines = [line.strip().removeprefix("-h, ") for line in USAGE.splitlines()]
    return (
        next(line for line in lines if line.startswith(f"--{name} "))
        .partition("  ")[2]
        .strip()
        .replace("%", "%%")
    )


def parse(arguments: list[str]) -> Options:
    """Read the options. The first word that is no option begins the program.

    Raises:
        CgpuError: an option is unknown or incomplete, or there is no program.
    """
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        word = "--help" if word == "-h" else word
        if word == "--":
            break
        name, equals, value = word.removeprefix("--").partition("=")
        if name in FLAGS and word.startswith("--"):
            if equals:
                raise CgpuError(f"{printable(word)}: expected --{name} alone, without a value")
            values[name] = ""
        elif name in VALUES and word.startswith("--"):
            if not equals and (not rest or _is_option(rest[0])):
                raise CgpuError(f"--{name}: a value is missing")
            values[name] = value if equals else rest.pop(0)
            if not values[name]:
                raise CgpuError(f"--{name}: the value is empty", hint="see cgpu-run --help")
        else:
            raise _unknown_option(word)
    return _build_options(values, rest)


def _is_option(word: str) -> bool:
    """Whether a word is an option, or the end of options: nobody meant it as a value."""
    known = ("", *VALUES, *FLAGS)
    return word.startswith("--") and word[2:].partition("=")[0] in known


def _unknown_option(word: str) -> CgpuError:
    near = find_nearest(word.lstrip("-").partition("=")[0], (*VALUES, *FLAGS))
    meant = f": did you mean --{near}?" if near else ""
    return CgpuError(f"unknown option {printable(word)}{meant}", hint="see cgpu-run --help")


def _build_options(values: dict[str, str], program: list[str]) -> Options:
    answer = _choose_answer(values)
    if answer is None and "mem" not in values:
        raise CgpuError(
            "--mem is missing: expected the share of memory, such as --mem 6GiB or 6/15"
        )
    if answer is None and not any(program[:1]):
        raise CgpuError("no program to run", hint="see cgpu-run --help")
    policy = values.get("policy")
    number = None if policy is None else rules.value_of("policy", policy)
    if policy is not None and number is None:
        raise CgpuError(
            f"--policy {printable(policy)}: expected {rules.format_allowed('policy', policy)}"
        )
    return Options(
        mem=values.get("mem", ""),
        weight=values.get("weight"),
        high_prio="high-prio" in values,
        policy=number,
        policy_word=policy,
        gpus=values.get("gpus"),
        driver_dir=values.get("driver-dir") or read_variable(DRIVER_VARIABLE),
        state_dir=values.get("state-dir") or read_variable(STATE_VARIABLE),
        namespaces="no-namespaces" not in values,
        answer=answer,
        program=program,
    )


def _choose_answer(values: dict[str, str]) -> str | None:
    if "help" in values:
        return USAGE
    return f"cgpu-run {VERSION}\n" if "version" in values else None


def to_variables(options: Options) -> dict[str, str]:
    """Return container variables that ask for the same, so that one set of rules checks both."""
    part, slash, whole = options.mem.partition("/")
    if _is_mixed(options.mem):
        part, slash = options.mem, ""
    optional = {WEIGHT: options.weight, VISIBLE: options.gpus}
    given = {name: value for name, value in optional.items() if value is not None}
    prio = {HIGH_PRIO: "1"} if options.high_prio else {}
    dev = {MEM_DEV: whole} if slash else {}
    return {MEM_CONTAINER: part, **dev, **given, **prio}


def _is_mixed(mem: str) -> bool:
    """Whether each size has its own unit or whole, as in 6GiB,6/15; 3,1/15 has one for all."""
    sizes = split_items(mem)
    plain = [each for each in sizes if "/" not in each]
    return len(sizes) - len(plain) > 1 or any(each and not each.isdecimal() for each in plain)


def translate_message(message: str, options: Options) -> str:
    """Return ``message``, which is about variables, as one about options."""
    given = to_variables(options)
    mem = f"--mem {printable(options.mem)}"
    names = {
        f"policy {options.policy}: GPU": f"--policy {printable(options.policy_word or '')}: GPU",
        f"{MEM_CONTAINER}={printable(given[MEM_CONTAINER])}": mem,
        f"{MEM_DEV}={printable(given.get(MEM_DEV, ''))}": f"{mem}, after the slash",
        MEM_CONTAINER: mem,
        f"of {MEM_DEV}": "given as the whole",
        f"{VISIBLE}=": "--gpus ",
        f"{WEIGHT}=": "--weight ",
        WEIGHT: "--weight",
    }
    for variable, option in names.items():
        message = message.replace(variable, option)
    return message
