"""Whole numbers, and amounts of memory, in the syntax of Kubernetes' quantities."""

from __future__ import annotations

import re

# The API server stores 1000 as 1k. Larger suffixes are refused: they suggest an amount in bytes.
_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}))"
    r"(?:(?P<suffix>[mk]?)|[eE](?P<exponent>[+-]?[0-9]{1,2}))"
)
_LARGEST = (1 << 63) - 1  # the largest quantity that the API server stores
_POWERS = {"m": -3, "": 0, "k": 3}
_SIZE = re.compile(r"(\d{1,18})([KMGTPE]i|[MGTPE])")
_PREFIXES = "KMGTPE"


def parse_quantity(value: object) -> int | None:
    """Return a quantity as an int, or None if it is not a whole number in the API server's range.

    >>> [parse_quantity(each) for each in ("3", "3e0", "2k", "1.5", "8Gi")]
    [3, 3, 2000, None, None]
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _LARGEST else None
    found = _FORM.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    power = int(found["exponent"]) if found["exponent"] else _POWERS[found["suffix"] or ""]
    before, _, behind = found["number"].partition(".")
    number, power = int(before + behind), power - len(behind)
    result, left = (number * int(10**power), 0) if power >= 0 else divmod(number, 10**-power)
    return None if left or abs(result) > _LARGEST else result


def parse_memory(written: str) -> int | None:
    """Return the bytes of a quantity; None if they are no whole number.

    >>> [parse_memory(each) for each in ("2500Mi", "16Gi", "1M", "1048576k", "1.5Gi")]
    [2621440000, 17179869184, 1000000, 1048576000, None]
    """
    found = _SIZE.fullmatch(written)
    if found is None:
        return parse_quantity(written)
    number, unit = found.groups()
    power = _PREFIXES.index(unit[0]) + 1
    base = 1024 if unit.endswith("i") else 1000
    return int(number) * int(base**power)
