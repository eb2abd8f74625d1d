"""The files that took longest, at the end of what a run over many files reports."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_LISTED = 10


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Seconds by file: what was made for its tests is counted where it was first wanted."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > _LISTED:
        terminalreporter.section(f"the {_LISTED} slowest files")
        for file, taken in seconds.most_common(_LISTED):
            terminalreporter.write_line(f"{taken:6.0f} s  {file}")
