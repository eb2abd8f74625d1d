"""JSON on the container start path, without the 5 ms that ``import json`` takes.

The standard library's own C scanner and encoder do the work; ``json`` itself also imports ``re``
and ``enum``. If an interpreter lacks these C modules, ``json`` is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLANKS = " \t\n\r"
_TOO_DEEP = "nested too deeply"
_INFINITE = float("inf")
_LONGEST_NUMBER = 400  # characters; int takes the square of the time, without a bound before 3.10.7


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _refuse_object(value: object) -> None:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        for name, _ in pairs:
            if name not in found:  # removed where it occurs first
                raise ValueError(f"the name {name} stands twice in one object")
            del found[name]
    return found


def _parse_integer(text: str) -> int:
    return int(_check_length(text))


def _parse_fraction(text: str) -> float:
    number = float(_check_length(text))
    if number in (_INFINITE, -_INFINITE):
        raise ValueError(f"the number {text} is too large")
    return number


def _check_length(text: str) -> str:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters is too long")
    return text


class _Context:
    """The settings that the C scanner reads from the object that owns it."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_build_object)
    parse_float = staticmethod(_parse_fraction)
    parse_int = staticmethod(_parse_integer)
    parse_constant = staticmethod(_refuse_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 (the scanner's own)


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # another implementation of Python
    import json

    _read: Callable[[str], Any] = json.JSONDecoder(
        object_pairs_hook=_build_object,
        parse_float=_parse_fraction,
        parse_int=_parse_integer,
        parse_constant=_refuse_constant,
    ).decode
    _write: Callable[[Any], str] = json.JSONEncoder(
        separators=(",", ":"), allow_nan=False, check_circular=False
    ).encode
else:
    _scan = make_scanner(_Context())  # type: ignore[arg-type]  # its stub is wrong
    _NOT = False  # sort_keys, skipkeys and allow_nan
    _encode = make_encoder(
        None, _refuse_object, encode_basestring_ascii, None, ":", ",", _NOT, _NOT, _NOT
    )

    def _read(text: str) -> Any:  # noqa: ANN401 (JSON holds anything)
        start = len(text) - len(text.lstrip(_BLANKS))
        try:
            value, end = _scan(text, start)
        except SystemError:  # it has no words for what is wrong before json is imported
            import json

            value, end = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text, start)
        except StopIteration as stop:
            raise ValueError(f"expected a value at character {stop.value}") from None
        if text[end:].strip(_BLANKS):
            raise ValueError(f"more text behind the value, at character {end}")
        return value

    def _write(value: Any) -> str:  # noqa: ANN401
        return "".join(_encode(value, 0))


def loads(text: str) -> Any:  # noqa: ANN401
    """Return the value of the JSON in ``text``. No name may occur twice in an object.

    Raises:
        ValueError: it is not JSON, nested too deeply, or has a number that is too large.
    """
    try:
        return _read(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def dumps(value: Any) -> str:  # noqa: ANN401
    """Return ``value`` as JSON in ASCII, without blanks.

    Raises:
        ValueError: it is nested too deeply.
    """
    try:
        return _write(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
