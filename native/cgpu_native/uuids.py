"""GPU UUIDs: the text that NVML prints and the 16 bytes that the driver API gives."""

from __future__ import annotations

PREFIX = "GPU-"
_GROUPS = (8, 4, 4, 4, 12)


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes behind ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``.

    Raises:
        ValueError: if ``text`` is not of that form.
    """
    groups = text[len(PREFIX) :].split("-")
    if not text.startswith(PREFIX) or tuple(map(len, groups)) != _GROUPS:
        raise ValueError(f"not a GPU UUID: {text!r}")
    try:
        raw = bytes.fromhex("".join(groups))
    except ValueError:
        raise ValueError(f"not a GPU UUID: {text!r}") from None
    if len(raw) != sum(_GROUPS) // 2:  # fromhex skips white space
        raise ValueError(f"not a GPU UUID: {text!r}")
    return raw


def uuid_text(raw: bytes) -> str:
    """Return the text form of a 16-byte UUID."""
    digits = raw.hex()
    groups = []
    for length in _GROUPS:
        groups.append(digits[:length])
        digits = digits[length:]
    return PREFIX + "-".join(groups)
