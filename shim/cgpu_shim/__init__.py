"""The proxies for the driver's libraries, built from ``shim/``.

Paths are plain strings here: each start imports this package, and ``pathlib`` takes 4 ms.
"""

from __future__ import annotations

import os


def library(soname: str) -> str:
    """Return the path of the built proxy for ``soname``, such as ``libcuda.so.1``.

    Raises:
        FileNotFoundError: it was not built.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", soname)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: build it with python setup.py build_binaries")
    return path
