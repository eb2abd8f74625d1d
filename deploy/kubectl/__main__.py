"""The beginning of ``kubectl-inspect-cgpu``, which older versions of Python read too."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 (as /usr/bin/python3 of macOS)
    VERSION = ".".join(map(str, sys.version_info[:2]))
    sys.exit(
        "kubectl-inspect-cgpu: python3 in PATH is Python " + VERSION + ": it must be 3.10 or later;"
        " install one, and put its folder first in PATH"
    )

from cgpu_entry import kubectl_inspect_cgpu

kubectl_inspect_cgpu()
