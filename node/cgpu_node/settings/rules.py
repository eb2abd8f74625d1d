"""The rules of each GPU: compute policy, max_inst and prio_ratio.

The configuration's rules, for all GPUs or for one, hold until `cgpu set` changes them for one GPU.
Changes are kept in ``<state>/rules.json``, so that admission and a restarted server know them; it
is written under the registry's lock. A policy that came with a program (``cgpu-run --policy``)
holds as long as a container is on the GPU. The cap of containers that name none is kept there too.
"""

from __future__ import annotations

from cgpu_env.errors import CgpuError, format_suggestion, printable
from cgpu_env.record import NamedTuple
from cgpu_env.request import DEFAULT_MAX_INST, MOST_INST
from cgpu_env.values import (
    BLANKS,
    BYTES,
    GIB,
    LARGEST_BYTES,
    LEAST_BYTES,
    MIB,
    Size,
    parse_integer,
    parse_size,
)
from cgpu_node import jsontext
from cgpu_node.paths import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeGuard

    Changes = dict[str, dict[str, int]]


FILE = "rules.json"
VERSION = 1
_WITH_PARTS = 2  # in a file where the default size is a part: earlier releases would read none
READ = (VERSION, _WITH_PARTS)
_POLICY = "policy"
# The policies' names as users type them, by number. A test compares them with the names in the C
# core, which is not loaded for a container that asks for nothing.
POLICIES = (
    "fair-share",
    "preemptive",
    "weighted-preemptive",
    "fixed",
    "soft",
    "native",
    "weighted-fair",
)
# Least and most of each rule. The configuration's keys have the same names.
RANGES = {"max_inst": (1, MOST_INST), _POLICY: (0, len(POLICIES) - 1), "prio_ratio": (20, 99)}
DEFAULT_POLICY, DEFAULT_PRIO_RATIO = 6, 80
_BROUGHT = "lent_policy"
# A rule of the whole node. Readers in C (hook/common/document.c) look for this very word.
DEFAULT_MEMSIZE = "default_memsize"
_LEAST_PARTS = GIB // LEAST_BYTES  # no GPU of these drivers has less than a GiB
DEFAULT_ALLOWED = (
    f"0 for none or at least {LEAST_BYTES // MIB}MiB, or a part of each GPU from 1/{_LEAST_PARTS}"
    f" to 100%, such as 6GiB, 512MiB, 40% or 6/15; {BYTES}"
)


class Rules(NamedTuple):
    """The rules of one GPU.

    Attributes:
        policy: the compute policy, a number of ``POLICIES``.
        max_inst: the most containers, and the most that their weights may add up to.
        prio_ratio: percent of the time that high-priority containers get while others want some.
    """

    policy: int = DEFAULT_POLICY
    max_inst: int = DEFAULT_MAX_INST
    prio_ratio: int = DEFAULT_PRIO_RATIO


class Defaults(NamedTuple):
    """The rules of GPUs before changes. ``own`` has those of single GPUs, by UUID."""

    common: Rules = Rules()
    own: Mapping[str, Rules] = {}

    def for_gpu(self, uuid: str) -> Rules:
        """Return the rules of one GPU."""
        return self.own.get(uuid, self.common)


def format_range(least: int, most: int) -> str:
    """Return the allowed range, in words."""
    return f"a whole number from {least} to {most}"


def format_allowed(name: str, given: object = None) -> str:
    """Return a rule's allowed values, in words; for a misspelt policy, the likely one."""
    if name != _POLICY:
        return format_range(*RANGES[name])
    meant = format_suggestion(_normalise_name(given), POLICIES) if isinstance(given, str) else ""
    return f"{format_range(*RANGES[name])}, or one of {', '.join(POLICIES)}{meant}"


def value_of(name: str, given: object) -> int | None:
    """Return the value of a rule; None if it is not allowed. A policy may be given by its name."""
    value = policy_of(given) if name == _POLICY and isinstance(given, str) else given
    return value if _is_whole(value, *RANGES[name]) else None


def policy_of(word: str) -> int | None:
    """Return the policy with this number or name, such as ``Weighted fair``."""
    name = _normalise_name(word)
    return POLICIES.index(name) if name in POLICIES else parse_integer(word, len(POLICIES) - 1)


def _normalise_name(word: str) -> str:
    return word.strip().lower().replace(" ", "-").replace("_", "-")


def check_rule(name: str, given: object) -> int:
    """Return the value of the rule ``name``.

    Raises:
        CgpuError: it is not allowed; one sentence names the rule, the value and what is allowed.
    """
    value = value_of(name, given)
    if value is None:
        raise CgpuError(f"{name}={printable(str(given))}: expected {format_allowed(name, given)}")
    return value


def check_number(name: str, value: object, least: int, most: int) -> int:
    """Return ``value`` if it is a whole number in the range.

    Raises:
        CgpuError: it is not; one sentence names ``name``, the value and what is allowed.
    """
    if not _is_whole(value, least, most):
        raise CgpuError(f"{name}={printable(str(value))}: expected {format_range(least, most)}")
    return value


def _is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def parse_amount(value: object) -> Size | None:
    """Return the size that ``value``, a number of bytes or a text, means; None if it means none."""
    if _is_whole(value, 0, LARGEST_BYTES):
        return Size(value)
    return parse_size(value) if isinstance(value, str) else None


def parse_default_size(value: object) -> int | str | None:
    """Return a default size: bytes, or the text of a part of each GPU; None if it is no size."""
    given = parse_amount(value)
    if given is None or (given.part and given.to_bytes(GIB) < LEAST_BYTES):
        return None
    if not given.whole or not given.part:
        return given.part
    return None if given.part > given.whole else str(value).strip(BLANKS)


def read_changes(state_dir: str) -> Changes:
    """Read the changes, by UUID; none if there is no such file, or a damaged one."""
    try:
        gpus = _read_content(state_dir)["gpus"].items()
        return {uuid: {k: v for k, v in gpu.items() if _is_valid(k, v)} for uuid, gpu in gpus}
    except (TypeError, KeyError, AttributeError):
        return {}


def write_changes(state_dir: str, changes: Changes) -> None:
    """Write the changes. The caller holds the registry's lock.

    Raises:
        OSError: they cannot be written; the old ones hold.
    """
    _write_content(state_dir, changes, read_default(state_dir))


def read_default(state_dir: str) -> int | str | None:
    """Read the default size that was set, by ``parse_default_size``; None if there is none."""
    try:
        found: int | str = _read_content(state_dir)["node"][DEFAULT_MEMSIZE]
    except (TypeError, KeyError):
        return None
    return found if _is_valid(DEFAULT_MEMSIZE, found) else None


def write_default(state_dir: str, size: int | str) -> None:
    """Keep a default size that was checked. The caller holds the registry's lock.

    Raises:
        OSError: it cannot be written; the old one holds.
    """
    _write_content(state_dir, read_changes(state_dir), size)


def default_memsize(state_dir: str, configured: int | str) -> int | str:
    """Return the cap of a container that names none (``parse_default_size``): set or configured."""
    changed = read_default(state_dir)
    return configured if changed is None else changed


def default_of_new(state_dir: str, configured: int | str) -> int | str:
    """Return the default size for a container that is being made.

    Raises:
        CgpuError: a default size was set that cannot be read, so the container would have no cap.
    """
    changed = read_default(state_dir)
    if changed is None and _names_default(f"{state_dir}/{FILE}"):
        raise CgpuError(
            f"{state_dir}/{FILE}: {DEFAULT_MEMSIZE} cannot be read: expected what cgpu set wrote",
            hint=f"cgpu set node {DEFAULT_MEMSIZE}=SIZE; 0: no cap",
        )
    return configured if changed is None else changed


def _names_default(path: str) -> bool:
    """Whether a file contains the key, found as the launcher does (``hook/common/document.c``)."""
    try:
        with open(path, "rb") as file:
            return DEFAULT_MEMSIZE.encode() in file.read()
    except OSError:
        return False


def is_foreign(state_dir: str) -> bool:
    """Whether the file exists, is undamaged, and has another version."""
    try:
        with open(f"{state_dir}/{FILE}", "rb") as file:
            return jsontext.loads(file.read().decode())["version"] not in READ
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _read_content(state_dir: str) -> dict[str, Any]:
    """Return the file's object; empty if the file is missing, damaged, or of another version."""
    try:
        with open(f"{state_dir}/{FILE}", "rb") as file:
            content: dict[str, Any] = jsontext.loads(file.read().decode())
        return content if content["version"] in READ else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_content(state_dir: str, changes: Changes, default: int | str | None) -> None:
    gpus = {uuid: gpu for uuid, gpu in changes.items() if gpu}
    version = _WITH_PARTS if isinstance(default, str) else VERSION
    node = {} if default is None else {"node": {DEFAULT_MEMSIZE: default}}
    content = {"version": version, "gpus": gpus, **node}
    write_atomically(f"{state_dir}/{FILE}", jsontext.dumps(content).encode())


def resolve(uuid: str, changes: Changes, defaults: Defaults, *, inhabited: bool) -> Rules:
    """Return the rules in force on a GPU. ``inhabited``: whether any container is on it."""
    own = dict(changes.get(uuid, {}))
    brought = own.pop(_BROUGHT, None)
    rules = defaults.for_gpu(uuid)._replace(**own)
    return rules._replace(policy=brought) if brought is not None and inhabited else rules


def bring_policy(changes: Changes, uuid: str, policy: int | None) -> bool:
    """Replace the policy that containers on a GPU brought along; None: remove it.

    Returns:
        Whether that changed anything.
    """
    own = changes.setdefault(uuid, {})
    before = own.pop(_BROUGHT, None)
    if policy is not None:
        own[_BROUGHT] = policy
    return before != policy


def change_rules(changes: Changes, uuid: str, wanted: Mapping[str, int]) -> None:
    """Add checked values to the changes. A policy replaces one that a container brought along."""
    own = changes.setdefault(uuid, {})
    own.update(wanted)
    if _POLICY in wanted:
        own.pop(_BROUGHT, None)


def _is_valid(name: str, value: object) -> bool:
    if name == DEFAULT_MEMSIZE:  # earlier releases let it be a few bytes
        return _is_whole(value, 0, LARGEST_BYTES) or isinstance(parse_default_size(value), str)
    return _is_whole(value, *RANGES[_POLICY if name == _BROUGHT else name])
