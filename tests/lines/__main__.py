"""``python tests/lines python COMMAND ...`` records the lines of our Python that COMMAND runs.

``python tests/lines c COMMAND ...``: those of C. Without words: reports what was recorded last.
"""

from __future__ import annotations

import os
import sys

import doors

import lines

if __name__ == "__main__":
    if sys.argv[1:]:
        words = doors.command(sys.argv[1], sys.argv[2:])
        os.execvp(words[0], words)
    sys.exit(lines.report())
