"""The node's configuration, ``/etc/cgpu/config.toml``.

::

    [node]
    max_inst = 20          # containers on a GPU, and the sum of their weights: 1..25
    default_memsize = 0    # cap of a container that names none: bytes, "6GiB", "40%"; 0: no cap
    allow_off = true       # false: a container that switches cgpu off is refused
    overcommit = false     # true: caps on a GPU may add up to more than its memory
    policy = 6             # compute policy of a GPU, by number or by name
    prio_ratio = 80        # percent of a GPU's time for high-priority containers: 20..99

    [gpu.0]                # of one GPU, by index or UUID: policy, max_inst, prio_ratio
    policy = "fixed"

    [driver]
    library_dir = "/usr/lib/x86_64-linux-gnu"

    [server]
    metrics = "127.0.0.1:9477"   # where cgpud serves Prometheus; nowhere by default
    dcgm_names = false           # true: metrics also under the names of NVIDIA's exporter

    [audit]
    interval_seconds = 2   # how often the driver is asked who holds memory: 0.1..3600
    action = "log"         # on memory taken past cgpu: "log", "kill", or "off" for no audit
"""

from __future__ import annotations

import os
import stat
import sys

from cgpu_env.devices import MAX_INDEX
from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_env.request import DEFAULT_MAX_INST
from cgpu_env.values import parse_integer
from cgpu_node.settings.rules import (
    DEFAULT_ALLOWED,
    DEFAULT_MEMSIZE,
    DEFAULT_POLICY,
    DEFAULT_PRIO_RATIO,
    RANGES,
    Defaults,
    Rules,
    format_allowed,
    parse_default_size,
    value_of,
)
from cgpu_node.trust import check_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol

    from cgpu_node.settings.kubernetes import Kubernetes

    class GpuIdentity(Protocol):
        """A GPU of the node, or of a request."""

        @property
        def index(self) -> int:
            """Return its index on this node."""

        @property
        def uuid(self) -> str:
            """Return its UUID as the driver writes it."""


CONFIG_PATH = "/etc/cgpu/config.toml"
KUBERNETES = "kubernetes.json"  # beside it; hook/common/document.c looks for it too


class Config(NamedTuple):
    """The configuration. A default applies to each key that the file lacks."""

    max_inst: int = DEFAULT_MAX_INST
    default_memsize: int | str = 0
    allow_off: bool = True
    overcommit: bool = False
    policy: int = DEFAULT_POLICY
    prio_ratio: int = DEFAULT_PRIO_RATIO
    library_dir: str | None = None
    metrics: str | None = None
    dcgm_names: bool = False  # of metrics
    interval_seconds: float = 2.0  # between two looks of the audit
    action: str = "log"  # of the audit
    # Rules of single GPUs (some of ``RANGES``), by index, or by UUID in lower case.
    gpu: Mapping[str, Mapping[str, int]] = {}
    kubernetes: Kubernetes | None = None  # whether pods follow decisions, from a file of its own


def _make_rule_reader(name: str) -> Callable[[object], object]:
    return lambda given: value_of(name, given)


def _accept_if(check: Callable[[Any], bool]) -> Callable[[object], object]:
    return lambda given: given if check(given) else None


_SHORTEST, _LONGEST = 0.1, 3600
_ACTIONS = ("log", "kill", "off")
_BOOLEAN = ("true or false", _accept_if(lambda v: isinstance(v, bool)))

# name: (table, what is allowed, in words, the function that reads a value: None: not allowed)
_KEYS: dict[str, tuple[str, str, Callable[[object], object]]] = {
    **{name: ("node", format_allowed(name), _make_rule_reader(name)) for name in RANGES},
    DEFAULT_MEMSIZE: ("node", DEFAULT_ALLOWED, parse_default_size),
    **dict.fromkeys(("allow_off", "overcommit"), ("node", *_BOOLEAN)),
    "library_dir": (
        "driver",
        "the absolute path of a directory",
        _accept_if(lambda v: isinstance(v, str) and v.startswith("/")),
    ),
    "metrics": (
        "server",
        "an address and a port, such as 127.0.0.1:9477",
        _accept_if(lambda v: isinstance(v, str) and v.rpartition(":")[2].isdecimal()),
    ),
    "dcgm_names": ("server", *_BOOLEAN),
    "interval_seconds": (
        "audit",
        f"a number of seconds from {_SHORTEST} to {_LONGEST}",
        _accept_if(
            lambda v: (
                isinstance(v, int | float)
                and not isinstance(v, bool)
                and _SHORTEST <= v <= _LONGEST
            )
        ),
    ),
    "action": (
        "audit",
        f"one of {', '.join(_ACTIONS)}",
        _accept_if(lambda v: isinstance(v, str) and v in _ACTIONS),
    ),
}
_GPU = "gpu"
_TABLES = ("node", _GPU, "driver", "server", "audit")


def load_config(path: str = CONFIG_PATH) -> Config:
    """Read and check the configuration; the defaults if there is no such file.

    On a node where pods follow schedulers' allocations, the node's mode sets the rules of its GPUs.

    Raises:
        CgpuError: the file has a mistake, or others could change it. One sentence names the file
            and, for a mistake, the key, the value and what is allowed.
    """
    config = _read_config(path)
    beside = f"{os.path.dirname(path)}/{KUBERNETES}"
    if not os.path.lexists(beside):  # as on most nodes, which need no more modules then
        return config
    from cgpu_node.settings import kubernetes

    setting = kubernetes.read_setting(beside)
    own = kubernetes.RULES[setting.mode] if setting else {}
    gpus = {
        gpu: {name: value for name, value in its.items() if name not in own}
        for gpu, its in config.gpu.items()
    }
    values: dict[str, Any] = {"kubernetes": setting, "gpu": gpus, **own}
    return config._replace(**values)


def make_defaults(config: Config, gpus: Iterable[GpuIdentity]) -> Defaults:
    """Return the rules of these GPUs until they are changed; a UUID goes before an index."""
    common = Rules(config.policy, config.max_inst, config.prio_ratio)
    own = {}
    for gpu in gpus if config.gpu else ():
        by_index, by_uuid = (config.gpu.get(name, {}) for name in _config_names(gpu))
        own[gpu.uuid] = common._replace(**{**by_index, **by_uuid})
    return Defaults(common, own)


def _config_names(gpu: GpuIdentity) -> tuple[str, str]:
    """Return the two names that a GPU may have in the configuration."""
    return str(gpu.index), gpu.uuid.lower()


def find_unknown_gpus(config: Config, gpus: Iterable[GpuIdentity]) -> list[str]:
    """Return the GPUs that the configuration names and the node does not have."""
    names = {name for gpu in gpus for name in _config_names(gpu)}
    return [name for name in config.gpu if name not in names]


def identify_config(path: str = CONFIG_PATH) -> tuple[object, ...]:
    """Return a value that changes with the files that ``load_config`` reads."""
    return _identify_file(path), _identify_file(f"{os.path.dirname(path)}/{KUBERNETES}")


def is_closed(path: str = CONFIG_PATH) -> bool:
    """Whether this user may not see whether there is a configuration, so that defaults apply."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _identify_file(path: str) -> tuple[int, int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _read_config(path: str) -> Config:
    if not _is_there(path):
        return Config()
    check_source(os.path.realpath(path))  # a user who can write it lifts every cap
    values: dict[str, Any] = {}
    for table, found in _parse_toml(path).items():
        if table not in _TABLES:
            raise CgpuError(f"{path}: {table}: expected the tables {', '.join(_TABLES)} only")
        entries = _check_table(path, table, found)
        if table == _GPU:
            values[table] = {
                gpu.lower(): _read_gpu_rules(path, gpu, its) for gpu, its in entries.items()
            }
        else:
            names = [name for name, (where, _, _) in _KEYS.items() if where == table]
            values |= {key: _read_key(path, table, names, key, its) for key, its in entries.items()}
    return Config(**values)


def _is_there(path: str) -> bool:
    """Whether there is a configuration file.

    If something else is at its path, it is refused. Its owner does not want the defaults, and if it
    were a pipe, the creation of every container would wait for it.
    """
    try:
        facts = os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            raise CgpuError(f"{path}: {error.strerror}, where its link leads") from None
        return False
    if not stat.S_ISREG(facts.st_mode):
        raise CgpuError(f"{path}: expected a file")
    return True


def _check_table(path: str, name: str, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise CgpuError(f"{path}: {name}: expected a table, [{name}] on a line of its own")
    return found


def _read_gpu_rules(path: str, gpu: str, found: object) -> dict[str, int]:
    """Read the rules of one GPU."""
    table = f"{_GPU}.{printable(gpu)}"
    if parse_integer(gpu, MAX_INDEX) is None and not _is_uuid(gpu):
        raise CgpuError(
            f"{path}: [{table}]: expected the index or the whole UUID of a GPU, such as [{_GPU}.0]"
        )
    entries = _check_table(path, table, found)
    return {key: _read_key(path, table, RANGES, key, given) for key, given in entries.items()}


def _is_uuid(text: str) -> bool:
    from cgpu_native import uuid_bytes

    try:
        return bool(uuid_bytes(text))
    except ValueError:
        return False


def _parse_toml(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            parsed: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise CgpuError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CgpuError(f"{path}: not TOML: {error}") from None
    return parsed


def _read_key(path: str, table: str, names: Iterable[str], key: str, given: object) -> Any:  # noqa: ANN401
    """Return the value of ``key``, which must be one of ``names``."""
    if key not in names:
        raise CgpuError(f"{path}: [{table}] has no key {key}: expected one of {', '.join(names)}")
    _, allowed_there, read = _KEYS[key]
    value = read(given)
    if value is None:
        what = format_allowed(key, given) if key in RANGES else allowed_there
        raise CgpuError(f"{path}: {key} = {printable(str(given))}: expected {what}")
    return value
