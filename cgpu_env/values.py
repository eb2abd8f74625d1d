"""Numbers, lists and sizes of memory as people write them.

A number has only ASCII digits: no sign, no leading zero. White space around a value or a list item
is ignored. Everything else is an error, never a guess. A container's variables have no units. What
users type to our own tools (``Size``) may have units.
"""

from __future__ import annotations

from cgpu_env.errors import env_error, printable
from cgpu_env.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BLANKS = " \t\n\r\f\v"
MAX_GIB = 1 << 20  # a pebibyte: far above any GPU, far below overflow of a byte count in 64 bits
_DIGITS = frozenset("0123456789")
MIB, GIB = 1 << 20, 1 << 30
LARGEST_BYTES = 1 << 60
LEAST_BYTES = MIB  # of a cap; a user who writes 6 means GiB
BYTES = "a number without a unit is in bytes"
_UNITS = {"GiB": GIB, "MiB": MIB}
_WHOLE_UNITS = {**_UNITS, "GB": GIB, "Gi": GIB, "MB": MIB, "Mi": MIB}
_PERCENT = 100
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def parse_integer(text: str, maximum: int) -> int | None:
    """Return the number in ``text``; None if it is not a whole number of 0..maximum."""
    if not text or not _DIGITS.issuperset(text) or len(text) > len(str(maximum)):
        return None
    if text[0] == "0" and text != "0":
        return None
    number = int(text)
    return number if number <= maximum else None


class Size(NamedTuple):
    """Memory of a GPU: ``part`` of ``whole`` equal parts of it; if ``whole`` is 0, ``part`` bytes.

    ``is_stated``: ``whole`` is the GPU's memory as the user states it, as in 6/15.
    """

    part: int
    whole: int = 0
    is_stated: bool = False

    def to_bytes(self, total: int) -> int:
        """Return the size in bytes on a GPU that has ``total`` bytes."""
        return total * self.part // self.whole if self.whole else self.part


def parse_size(text: str) -> Size | None:
    """Parse ``6GiB``, ``512MiB``, ``40%``, ``6/15`` or a number of bytes; None if it is no size."""
    text = text.strip(BLANKS)
    part, slash, whole = text.partition("/")
    if slash:
        parts, wholes = parse_integer(part, MAX_GIB), parse_integer(whole, MAX_GIB)
        return None if parts is None or not wholes else Size(parts, wholes, is_stated=True)
    if text.endswith("%"):
        percent = parse_integer(text[:-1], _PERCENT)
        return None if percent is None else Size(percent, _PERCENT)
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    most = LARGEST_BYTES // _UNITS.get(unit, 1)
    number = parse_integer(text.removesuffix(unit), most)
    return None if number is None else Size(number * _UNITS.get(unit, 1))


def describe_slip(text: str) -> str:
    """Return what is wrong with a size's unit, or with a number that is not whole; else ""."""
    text = text.strip(BLANKS)
    unit = text.lstrip("0123456789.")
    number, unit = text.removesuffix(unit), unit.lstrip(BLANKS)
    if number and unit not in _UNITS and unit.isascii() and unit.isalpha():
        return f"there is no unit {printable(unit)}: "
    return f"{printable(number)} is not a whole number: " if "." in number else ""


def _suggest_sizes(text: str, total: int) -> str:
    """Return how a refusal ends if only a unit of the sizes is wrong; otherwise an empty text."""
    meant = ",".join(_with_unit(item, total) for item in split_items(text))
    sizes = [parse_size(item) for item in split_items(meant)]
    fits = all(given and LEAST_BYTES <= given.to_bytes(total) <= total for given in sizes)
    return f": did you mean {meant}?" if fits else ""


def _with_unit(item: str, total: int) -> str:
    """Return a size as written; if its unit is wrong or missing, with the likely unit."""
    unit = item.lstrip("0123456789")
    number = parse_integer(item.removesuffix(unit), MAX_GIB)
    letter = unit.strip(BLANKS).lower().removesuffix("b").removesuffix("i")
    if number is None or letter not in ("", "g", "m") or (not letter and number >= LEAST_BYTES):
        return item
    return f"{number}{letter.upper() or ('G' if number * GIB <= total else 'M')}iB"


def compute_cap(name: str, value: str, given: Size | None, index: int | None, total: int) -> int:
    """Return the cap on a GPU of ``total`` bytes that ``value`` means, which was read as ``given``.

    ``index`` is None if there is no such GPU: then only a size is refused that no GPU could have.
    """
    wanted = given.to_bytes(total) if given else 0
    if not LEAST_BYTES <= wanted <= total:
        wrong = "" if given else next(filter(None, map(describe_slip, split_items(value))), "")
        most = "all of a GPU" if index is None else f"{total // MIB}MiB"
        if index is not None and wanted > total:
            wrong = f"GPU {index} has {most}: "
        allowed = f"{wrong}expected from {LEAST_BYTES // MIB}MiB to {most}"
        example = "such as 6GiB, 512MiB, 40% or 6/15 of the GPU"
        raise env_error(name, value, f"{allowed}, {example}; {BYTES}{_suggest_sizes(value, total)}")
    return wanted


def format_misstated(
    gpus: Iterable[tuple[int, int]], sizes: Iterable[Size], written: str, unit: str = "GiB"
) -> tuple[str, ...]:
    """Return a sentence for the GPUs whose size differs much from the stated one.

    Args:
        gpus: index and bytes of each GPU.
        sizes: the size that is wanted of each.
        written: where the whole is stated, in words that its writer knows.
        unit: the unit of the whole; an unknown one is not checked.
    """
    unit_bytes = _WHOLE_UNITS.get(unit, 0)
    off: dict[tuple[int, int, int], list[str]] = {}
    for (index, total), wanted in zip(gpus, sizes, strict=True):
        if unit_bytes and wanted.is_stated and _is_off(total, wanted.whole * unit_bytes):
            off.setdefault((total, wanted.part, wanted.whole), []).append(str(index))
    return tuple(
        f"{_format_gpus(here, total)}, not the {whole} {unit}"
        f" of {written}: {part} of {whole} is {total * part // whole // MIB} MiB"
        for (total, part, whole), here in off.items()
    )


def format_misstated_default(gpus: Iterable[tuple[int, int]], given: int | str) -> tuple[str, ...]:
    """Return a sentence for the GPUs that a node's default size does not suit.

    Args:
        gpus: index and bytes of each GPU.
        given: the default size, in bytes or a part; 0: none.
    """
    there, wanted = tuple(gpus), parse_size(str(given)) or Size(0)
    if wanted.whole:
        return format_misstated(there, [wanted] * len(there), f"default_memsize={given}")
    smaller: dict[int, list[str]] = {}
    for index, total in there:
        if total < wanted.part:
            smaller.setdefault(total, []).append(str(index))
    return tuple(
        f"{_format_gpus(here, total)}, less than default_memsize={wanted.part // MIB}MiB: a"
        " container that names no size gets the whole GPU"
        for total, here in smaller.items()
    )


def _format_gpus(indices: list[str], total: int) -> str:
    who = f"GPU {indices[0]} has" if len(indices) == 1 else f"GPUs {','.join(indices)} have"
    return f"{who} {total // MIB} MiB"


def _is_off(total: int, stated: int) -> bool:
    """Return whether a stated whole is off by more than a tenth, and by 1 GiB or more."""
    return abs(total - stated) >= GIB and abs(total - stated) * 10 > total


def split_items(text: str) -> list[str]:
    """Return the items of a comma list without white space around them. An item may be empty."""
    return [item.strip(BLANKS) for item in text.split(",")]


def parse_gib_list(variable: str, value: str, minimum: int) -> list[int]:
    """Return the whole GiB of a comma list, each at least ``minimum`` (0 or 1)."""
    numbers = []
    for item in split_items(value):
        number = parse_integer(item, MAX_GIB)
        if number is None or number < minimum:
            least = "" if minimum == 0 else f" of at least {minimum}"
            raise env_error(
                variable,
                value,
                f"expected whole GiB{least} such as 6, or a comma list such as 3,1"
                + (f" (at most {MAX_GIB})" if item.isascii() and item.isdecimal() else ""),
            )
        numbers.append(number)
    return numbers


def parse_number(variable: str, value: str, minimum: int, maximum: int, most: str = "") -> int:
    """Return the number ``value`` of ``minimum``..``maximum`` (in words: ``most``), or refuse."""
    number = parse_integer(value.strip(BLANKS), maximum)
    if number is None or number < minimum:
        allowed = f"expected a whole number from {minimum} to {most or maximum}"
        raise env_error(variable, value, allowed)
    return number


def parse_truth(variable: str, value: str) -> bool:
    """Return the truth value of ``true`` or ``false`` in any case, or of ``1`` or ``0``."""
    word = value.strip(BLANKS)
    known = _TRUTH.get(word.lower()) if word.isascii() else None
    if known is None:
        raise env_error(variable, value, "expected true, false, 1 or 0")
    return known
