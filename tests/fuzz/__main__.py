"""``make fuzz``: every fuzzer for ``FUZZ_SECONDS``.

``tests/fuzz TARGET...``: only these; ``tests/fuzz TARGET FILE``: one input again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / name) for name in ("tests", ".", "native", "shim", "node", "hook", "server", "cli")
]


def main(names: list[str]) -> int:
    """Fuzz the targets of these names, all where there are none; the exit status."""
    from fuzz import programs  # noqa: PLC0415 (found by the path above)
    from fuzz.counts import COUNTS, how_to_repeat  # noqa: PLC0415

    if len(names) == 2 and Path(names[1]).is_file():
        done = programs.once(programs.command(names[0]), Path(names[1]))
        print(done.stdout + done.stderr, end="")
        return done.returncode
    seconds = int(os.environ.get("FUZZ_SECONDS", "120"))
    status = 0
    for name in names or COUNTS:
        outcome = programs.run(name, seconds=seconds, keeps=True)
        print(f"{name}: {outcome.output.rstrip()}", flush=True)
        if outcome.failed:
            status = 1
            print(how_to_repeat(name, outcome.failed))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
