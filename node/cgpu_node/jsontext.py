"""JSON on the container start path, without the 5 ms that ``import json`` takes.

The standard library's own C scanner and encoder do the work; ``json`` itself imports ``re`` and
``enum`` around them. Where an interpreter has no such C module, ``json`` is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLANKS = " \t\n\r"
_TOO_DEEP = "nested too deeply"


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _refuse_object(value: object) -> None:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice} stands twice in one object")
    return found


class _Context:
    """What the C scanner asks its owner for."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 (the scanner's own)


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # another implementation of Python
    import json

    _read: Callable[[str], Any] = json.JSONDecoder(
        object_pairs_hook=_object, parse_constant=_refuse_constant
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
    """The value that ``text`` writes; no name may stand twice in one object.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return _read(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def dumps(value: Any) -> str:  # noqa: ANN401
    """``value`` as JSON in ASCII, without blanks.

    Raises:
        ValueError: it is nested too deeply.
    """
    try:
        return _write(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
