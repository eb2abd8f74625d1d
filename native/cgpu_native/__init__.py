"""Python's side of the C core: limits and ledger. It is imported on the container start path."""

from __future__ import annotations

from cgpu_native.errors import FormatError, NativeError
from cgpu_native.files import create_ledger, cut_ledger, open_file
from cgpu_native.limits import (
    LIMITS_VERSION,
    MAX_GPUS,
    MISSTATED,
    Limits,
    LimitsGpu,
    pack_limits,
    read_head,
    read_limits,
    unpack_limits,
)
from cgpu_native.uuids import uuid_bytes, uuid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_native.amend import amend_limits, set_bytes
    from cgpu_native.ledger import LEDGER_VERSION, Ledger, LedgerProcess, is_costly
else:
    # Not needed to start a container: imported at first use.
    _LATER = {
        "amend": ("amend_limits", "set_bytes"),
        "ledger": ("LEDGER_VERSION", "Ledger", "LedgerProcess", "is_costly"),
    }

    def __getattr__(name):  # noqa: ANN001, ANN202
        for module, names in _LATER.items():
            if name in names:
                return getattr(__import__(f"cgpu_native.{module}", fromlist=names), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LEDGER_VERSION",
    "LIMITS_VERSION",
    "MAX_GPUS",
    "MISSTATED",
    "FormatError",
    "Ledger",
    "LedgerProcess",
    "Limits",
    "LimitsGpu",
    "NativeError",
    "amend_limits",
    "create_ledger",
    "cut_ledger",
    "is_costly",
    "open_file",
    "pack_limits",
    "read_head",
    "read_limits",
    "set_bytes",
    "unpack_limits",
    "uuid_bytes",
    "uuid_text",
]
