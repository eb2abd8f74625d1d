"""A pod's decision, the annotation ``cgpu/allocation``: what each container has of which GPU.

::

    {"v": 1, "pod": UID, "node": NAME,
     "containers": {"main": {"GPU-...": {"mem": 8192, "core": 30}}}}

Whoever schedules a pod writes it, and the node where a container of the pod is created follows it.
Containers go by name and GPUs by UUID, because indices change. ``mem`` is MiB of that GPU, ``core``
hundredths of its time; it may be absent, as 0, where nodes share memory only.
"""

from __future__ import annotations

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_env.values import MAX_GIB
from cgpu_node import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ANNOTATION = "cgpu/allocation"
VERSION = 1
MAX_BYTES = 64 << 10
CORE_STEP, WHOLE_CORE = 5, 100
_MAX_MIB = MAX_GIB << 10
_LONGEST_UID, _LONGEST_NAME, _LONGEST_LABEL = 128, 253, 63
_FIELDS = ("v", "pod", "node", "containers")
_PARTS = ("mem", "core")
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_WORD = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_VENDOR = "GPU-"


class Grant(NamedTuple):
    """A container's grant of one GPU: ``mem`` in MiB, ``core`` in hundredths of its time."""

    mem: int
    core: int = 0


class AllocationAnnotation(NamedTuple):
    """The content of a pod's annotation ``cgpu/allocation``.

    Attributes:
        pod: the pod's UID.
        node: the name of the pod's node.
        containers: grants by the container's name and the GPU's UUID; containers without a GPU are
            absent.
    """

    pod: str
    node: str
    containers: Mapping[str, Mapping[str, Grant]]


def parse_annotation(text: str) -> AllocationAnnotation:
    """Return the allocation in an annotation's value.

    Raises:
        CgpuError: there is none in it; one sentence names the field and what is allowed.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _make_error(f"{size} bytes: expected at most {MAX_BYTES}")
    try:
        content = jsontext.loads(text)
    except ValueError as error:
        raise _make_error(f"not JSON: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise _make_error(f"{_format_value(content)}: expected a JSON object")
    version = content.get("v", VERSION)
    if version != VERSION or not _is_whole(version):
        raise _make_error(
            f"v={_format_value(version)}: expected {VERSION}, which this release reads"
        )
    _check_fields("", content, _FIELDS, _FIELDS)
    return AllocationAnnotation(
        _check_name("pod", content["pod"], _WORD, _LONGEST_UID, "a pod's UID"),
        _check_name("node", content["node"], _LOWER | {"."}, _LONGEST_NAME, "a node's name"),
        {
            _check_name(
                "containers", name, _LOWER, _LONGEST_LABEL, "names of containers"
            ): _parse_grants(f"containers.{name}", gpus)
            for name, gpus in _check_object(
                "containers", content["containers"], "containers"
            ).items()
        },
    )


def format_annotation(allocation: AllocationAnnotation) -> str:
    """Return the annotation's value, in ASCII without blanks; ``parse_annotation`` reads it.

    Raises:
        CgpuError: the allocation breaks a rule of ``parse_annotation``, or has too many containers.
    """
    text = jsontext.dumps(
        {
            "v": VERSION,
            "pod": allocation.pod,
            "node": allocation.node,
            "containers": {
                name: {uuid: _dump_grant(grant) for uuid, grant in gpus.items()}
                for name, gpus in allocation.containers.items()
            },
        }
    )
    parse_annotation(text)
    return text


def _dump_grant(grant: Grant) -> dict[str, int]:
    return {"mem": grant.mem, "core": grant.core} if grant.core else {"mem": grant.mem}


def _parse_grants(field: str, value: object) -> dict[str, Grant]:
    found = {}
    for uuid, part in _check_object(field, value, "GPUs").items():
        name = uuid.removeprefix(_VENDOR)
        if name == uuid:
            raise _make_error(
                f"{field}: {printable(uuid)}: expected a GPU's UUID, such as {_VENDOR}..."
            )
        _check_name(field, name, _WORD, _LONGEST_UID, f"a GPU's UUID, such as {_VENDOR}...")
        found[uuid] = _parse_grant(f"{field}.{uuid}", part)
    return found


def _parse_grant(field: str, value: object) -> Grant:
    part = _check_object(field, value, "mem and core")
    _check_fields(f"{field}.", part, _PARTS, _PARTS[:1])
    mem, core = part["mem"], part.get("core", 0)
    if not _is_whole(mem) or not 1 <= mem <= _MAX_MIB:
        raise _make_error(
            f"{field}.mem={_format_value(mem)}: expected whole MiB from 1 to {_MAX_MIB}"
        )
    if not _is_whole(core) or not 0 <= core <= WHOLE_CORE or core % CORE_STEP:
        allowed = f"a multiple of {CORE_STEP} from 0 to {WHOLE_CORE}"
        raise _make_error(f"{field}.core={_format_value(core)}: expected {allowed}")
    return Grant(mem, core)


def _check_fields(
    path: str, given: dict[str, Any], known: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    for name in given:
        if name not in known:
            raise _make_error(
                f"{path}{printable(name)}: no such field: expected {', '.join(known)}"
            )
    for name in needed:
        if name not in given:
            raise _make_error(f"{path}{name} is missing")


def _check_object(field: str, value: object, members: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise _make_error(
            f"{field}={_format_value(value)}: expected an object of {members}, at least one"
        )
    return value


def _check_name(
    field: str, value: object, letters: frozenset[str], longest: int, expected: str
) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not letters.issuperset(value):
        raise _make_error(
            f"{field}={_format_value(value)}: expected {expected} of at most {longest} characters"
        )
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _format_value(value: object) -> str:
    """Return a value of the annotation as a message shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(str(value) if isinstance(value, float) else jsontext.dumps(value))


def _make_error(problem: str) -> CgpuError:
    return CgpuError(f"{ANNOTATION}: {problem}")
