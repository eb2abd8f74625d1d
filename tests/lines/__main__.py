"""``python tests/lines count COMMAND ...`` counts the lines of ours that the tests of COMMAND run.

``python tests/lines sums`` says which share that was of all, and fails below a floor; ``table``
says it of each file, too.
"""

from __future__ import annotations

import os
import sys

import doors

import lines

if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "count":
        os.umask(0o022)  # programs of any user run what is built here, and add to its counts
        words = doors.command(words)
        os.execvp(words[0], words)
    sys.exit(lines.report(each=what == "table"))
