"""Reports that the libraries of the extra ``k8s`` are not installed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def report_missing() -> Iterator[None]:
    """Report a failed import in the block as a missing extra.

    Raises:
        CgpuError: a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise CgpuError(
            f"the module {error.name} is missing: this program needs cgpu's extra k8s",
            hint=f"in a clone of cgpu: {sys.executable} -m pip install '.[k8s]'",
        ) from None
