"""Numbers and lists as they are written in a container's environment.

Only ASCII digits make a number: no sign, no leading zero, no unit. White space around a value or a
list item is ignored. Everything else is an error, never a guess.
"""

from __future__ import annotations

from cgpu_env.errors import refused

BLANKS = " \t\n\r\f\v"
MAX_GIB = 1 << 20  # a pebibyte: far above any GPU, far below overflow of a byte count in 64 bits
_DIGITS = frozenset("0123456789")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def integer(text: str, maximum: int) -> int | None:
    """The number that ``text`` writes, or None where it is not a whole number of 0..maximum."""
    if not text or not _DIGITS.issuperset(text) or len(text) > len(str(maximum)):
        return None
    if text[0] == "0" and text != "0":
        return None
    number = int(text)
    return number if number <= maximum else None


def items(text: str) -> list[str]:
    """The items of a comma list, without the white space around them; an item may be empty."""
    return [item.strip(BLANKS) for item in text.split(",")]


def gib_list(variable: str, value: str, minimum: int) -> list[int]:
    """The whole GiB of a comma list, each at least ``minimum`` (0 or 1)."""
    numbers = []
    for item in items(value):
        number = integer(item, MAX_GIB)
        if number is None or number < minimum:
            least = "" if minimum == 0 else f" of at least {minimum}"
            raise refused(
                variable,
                value,
                f"expected whole GiB{least} such as 6, or a comma list such as 3,1"
                + (f" (at most {MAX_GIB})" if item.isascii() and item.isdecimal() else ""),
            )
        numbers.append(number)
    return numbers


def number_in(variable: str, value: str, minimum: int, maximum: int) -> int:
    """The one whole number of ``minimum``..``maximum`` that ``value`` writes."""
    number = integer(value.strip(BLANKS), maximum)
    if number is None or number < minimum:
        raise refused(variable, value, f"expected a whole number from {minimum} to {maximum}")
    return number


def truth(variable: str, value: str) -> bool:
    """``true``, ``false`` in any case, ``1`` or ``0``."""
    word = value.strip(BLANKS)
    known = _TRUTH.get(word.lower()) if word.isascii() else None
    if known is None:
        raise refused(variable, value, "expected true, false, 1 or 0")
    return known
