"""Finds the GPU or container that a typed word means.

A GPU has an index and a UUID, a container an id and a name; the beginning of a UUID or an id is
enough. An ambiguous word is refused, never guessed. A name is ambiguous too if another container's
id begins with it, because the maker of an image may choose the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cgpu_env.devices import VENDOR, format_gpus
from cgpu_env.errors import CgpuError, format_suggestion, printable

NODE, EVERY_GPU = "node", "all"
_SHORT = 12
_LISTED = 5


class Target(NamedTuple):
    """The meaning of a word that names what to change.

    Attributes:
        uuids: the GPUs; with a container, the one GPU where to change it, or none.
        container: the container's id; None: the GPUs themselves are meant.
    """

    uuids: tuple[str, ...]
    container: str | None = None


def resolve_target(word: str, gpus: Mapping[str, int], names: Mapping[str, str]) -> Target:
    """Return the meaning of a word: GPUs, a container, or GPU/CONTAINER.

    A GPU takes precedence over a container. A short number is always an index: ``0`` never means a
    container whose id begins with it.

    Args:
        word: what somebody typed.
        gpus: the GPUs, index by UUID.
        names: the containers, name by id.

    Raises:
        CgpuError: it means nothing, or could mean two.
    """
    if word == EVERY_GPU and gpus:
        return Target(tuple(gpus))
    is_index = word.isdecimal() and len(word) < _SHORT and word not in {*names, *names.values()}
    if is_index or match_gpus(word, gpus):
        return Target((find_gpu(word, gpus),))
    before, slash, name = word.partition("/")
    whole = match_containers(word, names)  # a pod's name has slashes too
    if slash and whole and match_containers(name, names):
        raise CgpuError(
            f"'{printable(word)}' may be container {printable(name)!r} on GPU {printable(before)},"
            f" and is the name of {whole[0][:_SHORT]}: name one by its id"
        )
    if slash and not whole:
        return Target((find_gpu(before, gpus),), find_container(name, names))
    return Target((), find_container(word, names))


def match_gpus(word: str, gpus: Mapping[str, int]) -> list[str]:
    """Return the UUIDs that a word may mean. ``gpus``: index by UUID."""
    wanted = word.lower()
    named = [uuid for uuid, index in gpus.items() if wanted in (str(index), uuid.lower())]
    if named or not wanted.startswith(VENDOR.lower()):
        return named
    return [uuid for uuid in gpus if uuid.lower().startswith(wanted)]


def find_gpu(word: str, gpus: Mapping[str, int]) -> str:
    """Return the UUID that a word means.

    Raises:
        CgpuError: it means none, or more than one; the sentence lists what could be meant.
    """
    found = match_gpus(word, gpus)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{uuid} (GPU {gpus[uuid]})" for uuid in found)
        raise CgpuError(
            f"'{printable(word)}' is the beginning of {len(found)} UUIDs, write more of one:"
            f" {listed}"
        )
    near = format_suggestion(word, (EVERY_GPU,)) if gpus else ""
    what = f"expected index or UUID; {format_gpus(gpus.values())}{near}"
    hint = "" if gpus else "cgpu doctor says why"
    raise CgpuError(f"'{printable(word)}': no such GPU: {what}", hint=hint)


def match_containers(word: str, containers: Mapping[str, str]) -> list[str]:
    """Return the ids that a word may mean. ``containers``: name by id."""
    if word in containers or not word:
        return [word] if word else []
    return [id_ for id_, name in containers.items() if name == word or id_.startswith(word)]


def find_container(word: str, containers: Mapping[str, str]) -> str:
    """Return the id that a word means.

    Raises:
        CgpuError: it means none, or more than one; the sentence lists what could be meant.
    """
    found = match_containers(word, containers)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CgpuError(f"'{printable(word)}': no such container or session: cgpu get lists them")
    listed = ", ".join(_describe_container(id_, containers[id_], found) for id_ in found[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise CgpuError(
        f"'{printable(word)}' means {len(found)} containers: {listed}{more}: name one by its id"
    )


def _describe_container(id_: str, name: str, beside: list[str]) -> str:
    short = id_[:_SHORT]
    is_clear = sum(other.startswith(short) for other in beside) == 1
    return printable(short if is_clear else id_, len(id_)) + (
        f" ({printable(name)})" if name else ""
    )
