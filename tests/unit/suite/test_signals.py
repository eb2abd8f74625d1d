"""A run of pytest that inherits ignored signals ignores them, and hands none on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

RUN = """
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from lab.runs.signals import keep_from_children
keep_from_children()
os.kill(os.getpid(), signal.SIGHUP)
subprocess.run(["grep", "-E", "SigIgn|SigBlk|Umask", "/proc/self/status"], check=True)
"""
ROOT = Path(__file__).resolve().parents[3]
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def ignore() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)


def test_children_have_the_default_of_each_signal() -> None:
    """As with ``nohup make test &``."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}{RUN}"],
        preexec_fn=ignore,
        capture_output=True,
        text=True,
        check=False,
    )
    words = done.stdout.split()
    assert (done.returncode, words[:2]) == (0, ["Umask:", "0022"]), done.stderr
    assert words[2::2] == ["SigBlk:", "SigIgn:"]
    known = sum(1 << (number - 1) for number in (*IGNORED, signal.SIGTERM))
    assert [int(mask, 16) & known for mask in words[3::2]] == [0, 0]


def test_this_run_hands_on_no_ignored_signal_and_the_usual_umask() -> None:
    assert signal.SIG_IGN not in map(signal.getsignal, IGNORED)
    umask = os.umask(0o022)
    assert umask == 0o022


def test_so_does_a_run_that_inherits_others() -> None:
    """Its ``conftest.py`` sees to that."""
    test = f"{__file__}::{test_this_run_hands_on_no_ignored_signal_and_the_usual_umask.__name__}"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        words, cwd=ROOT, preexec_fn=ignore, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
