"""The node's configuration, ``/etc/cgpu/config.toml``.

::

    [node]
    max_inst = 20          # containers on a GPU, and the sum of their weights: 1..25
    default_memsize = 0    # cap of a container that names none: bytes, or "6GiB"; 0: no cap
    overcommit = false     # true: caps on a GPU may add up to more than its memory
    policy = 6             # compute policy of a GPU: 0..6
    prio_ratio = 80        # percent of a GPU's time for high-priority containers: 20..99

    [driver]
    library_dir = "/usr/lib/x86_64-linux-gnu"

    [server]
    metrics = "127.0.0.1:9477"   # where cgpud serves Prometheus; nowhere by default

    [audit]
    interval_seconds = 2   # how often the driver is asked who holds memory: 0.1..3600
    action = "log"         # on memory taken around cgpu: "log", "kill", or "off" for no audit
"""

from __future__ import annotations

import os
import sys

from cgpu_env.errors import CgpuError
from cgpu_env.record import NamedTuple
from cgpu_env.request import DEFAULT_MAX_INST
from cgpu_hook.rules import (
    DEFAULT_ALLOWED,
    DEFAULT_MEMSIZE,
    DEFAULT_POLICY,
    DEFAULT_PRIO_RATIO,
    RANGES,
    default_bytes,
    expected,
)
from cgpu_hook.trust import check_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CONFIG_PATH = "/etc/cgpu/config.toml"


class Config(NamedTuple):
    """What the administrator decided; the defaults hold where the file says nothing."""

    max_inst: int = DEFAULT_MAX_INST
    default_memsize: int = 0
    overcommit: bool = False
    policy: int = DEFAULT_POLICY
    prio_ratio: int = DEFAULT_PRIO_RATIO
    library_dir: str | None = None
    metrics: str | None = None
    interval_seconds: float = 2.0  # between two looks of the audit
    action: str = "log"  # of the audit


def _whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


_SHORTEST, _LONGEST = 0.1, 3600
_ACTIONS = ("log", "kill", "off")

# name: (table, what is allowed in words, the check)
_KEYS: dict[str, tuple[str, str, Callable[[object], bool]]] = {
    **{name: ("node", expected(*ends), _whole(*ends)) for name, ends in RANGES.items()},
    DEFAULT_MEMSIZE: ("node", DEFAULT_ALLOWED, lambda v: default_bytes(v) is not None),
    "overcommit": ("node", "true or false", lambda v: isinstance(v, bool)),
    "library_dir": (
        "driver",
        "the absolute path of a directory",
        lambda v: isinstance(v, str) and v.startswith("/"),
    ),
    "metrics": (
        "server",
        "an address and a port, such as 127.0.0.1:9477",
        lambda v: isinstance(v, str) and v.rpartition(":")[2].isdecimal(),
    ),
    "interval_seconds": (
        "audit",
        f"a number of seconds from {_SHORTEST} to {_LONGEST}",
        lambda v: (
            isinstance(v, int | float) and not isinstance(v, bool) and _SHORTEST <= v <= _LONGEST
        ),
    ),
    "action": (
        "audit",
        f"one of {', '.join(_ACTIONS)}",
        lambda v: isinstance(v, str) and v in _ACTIONS,
    ),
}
_TABLES = ("node", "driver", "server", "audit")


def load_config(path: str = CONFIG_PATH) -> Config:
    """Read and check the configuration; the defaults where there is no such file.

    Raises:
        CgpuError: one sentence that names the file, the key, the value and what is allowed, or says
            that others could change the file.
    """
    if not os.path.exists(path):
        return Config()
    check_source(os.path.realpath(path))  # whoever can write it lifts every cap
    values: dict[str, Any] = {}
    for table, entries in _parse(path).items():
        if table not in _TABLES:
            raise CgpuError(f"{path}: {table}: expected the tables {', '.join(_TABLES)} only")
        if not isinstance(entries, dict):
            raise CgpuError(f"{path}: {table}: expected a table, [{table}] on a line of its own")
        for key, value in entries.items():
            values[key] = _checked(path, table, key, value)
    return Config(**values)


def _parse(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            parsed: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise CgpuError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CgpuError(f"{path}: not TOML: {error}") from None
    return parsed


def _checked(path: str, table: str, key: str, value: object) -> object:
    known = _KEYS.get(key)
    if known is None or known[0] != table:
        names = ", ".join(name for name, (where, _, _) in _KEYS.items() if where == table)
        raise CgpuError(f"{path}: [{table}] has no key {key}: expected one of {names}")
    if not known[2](value):
        raise CgpuError(f"{path}: {key} = {str(value)[:60]}: expected {known[1]}")
    return default_bytes(value) if key == DEFAULT_MEMSIZE else value
