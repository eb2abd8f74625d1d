"""Encodes and decodes protobuf messages of strings and nested messages; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EMPTY = b""
_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


def encode_message(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a message with these fields: pairs of a field number and an encoded value."""
    return b"".join(
        _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(value)) + value
        for number, value in fields
    )


def _encode_varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _encode_varint(rest) if rest else bytes([low])


def decode_text(message: bytes, number: int) -> str:
    """Return the string in a field, the last one if it repeats; "" if there is none.

    Raises:
        ValueError, IndexError: ``message`` is malformed.
    """
    return b"".join(decode_values(message, number)[-1:]).decode()


def decode_values(message: bytes, number: int) -> list[bytes]:
    """Return the values of a length-delimited field, in order.

    Raises:
        ValueError, IndexError: ``message`` is malformed.
    """
    return [value for key, value in _decode_fields(message) if key == number]


def _decode_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each length-delimited field; skip the others."""
    at = 0
    while at < len(message):
        key, at = _decode_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _decode_varint(message, at)
            continue
        size, at = (_FIXED[kind], at) if kind in _FIXED else _decode_varint(message, at)
        if kind not in {*_FIXED, _LENGTH_DELIMITED} or at + size > len(message):
            raise ValueError(f"field {key >> 3} at byte {at}")
        if kind == _LENGTH_DELIMITED:
            yield key >> 3, message[at : at + size]
        at += size


def _decode_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at index ``at``, and the index after it."""
    value, shift = 0, 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
