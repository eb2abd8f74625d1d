"""``python -m gpu.child NAME`` runs one check in this process and tells what it found."""

from __future__ import annotations

import sys

from gpu.catalogue import find
from gpu.check import NotRunError, say


def main(name: str) -> None:
    """Run the check ``name``."""
    try:
        finding = find(name).run()
    except NotRunError as error:
        say(not_run=str(error))
        return
    say(holds=bool(finding.holds), measured=finding.measured)


if __name__ == "__main__":
    main(sys.argv[1])
