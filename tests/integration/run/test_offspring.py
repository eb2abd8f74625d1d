"""What ``offspring.end_at_exit`` ends, what it spares, and that it ends itself (CLI-9)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

# It prints whether a child from before, one from inside and an orphan from inside are still there.
WHOSE = """
import os, subprocess
from cgpu_cli.demo import offspring

SLEEP = ["sleep", "1000"]
ORPHAN = ["sh", "-c", "sleep 1000 >&- & echo $!"]
mine = subprocess.Popen(SLEEP)
try:
    with offspring.end_at_exit():
        inside = subprocess.Popen(SLEEP)
        orphan = subprocess.run(ORPHAN, stdout=subprocess.PIPE, text=True).stdout
    print(*(os.path.exists(f"/proc/{int(pid)}") for pid in (mine.pid, inside.pid, orphan)))
finally:
    mine.kill()
"""

# A child that is not killed by what `os.kill` does here.
STAYS = """
import os, subprocess
from cgpu_cli.demo import offspring
from cgpu_env import CgpuError

def refuse(*_):
    raise PermissionError("not yours")

kill, offspring._LIMIT_SECONDS = os.kill, 0.1
os.kill = {instead}
try:
    with offspring.end_at_exit():
        child = subprocess.Popen(["sleep", "1000"])
except CgpuError as error:
    assert str(child.pid) in str(error), error
    print(str(error).replace(str(child.pid), "PID"))
finally:
    kill(child.pid, 9)
"""


def output(script: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}  # of children that were not waited for
    words = [sys.executable, "-c", script]
    return subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout


def test_children_from_before_are_spared() -> None:
    assert output(WHOSE) == "True False False\n"


@pytest.mark.parametrize("instead", ["refuse", "lambda *_: None"])
def test_a_child_that_cannot_be_killed_is_named(instead: str) -> None:
    """It belongs to another user, or it is in an uninterruptible call."""
    assert output(STAYS.format(instead=instead)) == (
        "processes that this command started did not end within 0.1 s of SIGKILL: PID\n"
    )
