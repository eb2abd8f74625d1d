"""K8S-9: ``make demo-k8s`` shows what the documents' pods have, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab.containers.enclosure import CGROUPS, PREFIX, wait_until
from lab.kubernetes.programs import releases

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NEAR, COARSE = 5, 15  # percent; the demonstration's own, and ours
DEMO = Path(__file__).resolve().parents[3] / "deploy" / "demo-k8s"


def left(process: subprocess.Popen[str]) -> list[Path]:
    """What a demonstration has made that is still there."""
    name = f"{PREFIX}{process.pid}-*"
    folders = (Path(tempfile.gettempdir()), CGROUPS, *CGROUPS.glob("*/"))
    return [path for folder in folders for path in folder.glob(name)]


def test_both_pods_have_their_parts() -> None:
    with subprocess.Popen(
        [sys.executable, DEMO], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        output, _ = demo.communicate()
    for line in ("0MiB /  3232MiB", "0MiB /  2154MiB", "3/15  ", "2/15  "):
        assert line in output, output
    assert "It names ack-co-scheduler, and has ack-co-scheduler." in output
    assert "It names no scheduler, and has cgpu-scheduler." in output
    assert "2154 MiB of GPU 0, and at most 30 % of its time." in output
    # What it says of a share is true, whatever the share on a machine with other work.
    verdict = r"it had (\S+) % .* part of both is (\S+) %, and it was promised 30 %: (\D+)\."
    [(had, part, outcome)] = re.findall(verdict, output)
    assert abs(float(part) - 30) <= COARSE, output  # a half each if nobody held them to it
    held = abs(float(part) - 30) <= NEAR and float(had) <= 30 + NEAR
    assert outcome == ("held" if held else "NOT held"), output
    assert left(demo) == []
    if any(each.is_since(36) for each in releases()):
        held &= check_claims(output)
    assert demo.returncode == (0 if held else 1), output


def check_claims(output: str) -> bool:
    """Whether the pods with claims had their parts: DRA-2, on a newer Kubernetes."""
    for line in ("0MiB /  6144MiB", "0MiB /  9216MiB", "cannot allocate all claims"):
        assert line in output, output
    assert "it runs, with 4096 MiB." in output
    [(part, outcome)] = re.findall(r"small has (\S+) % .* small claims 30: (\D+)\.", output)
    assert abs(float(part) - 30) <= COARSE, output
    held = abs(float(part) - 30) <= NEAR
    assert outcome == ("held" if held else "NOT held"), output
    return held


def test_who_is_not_root_reads_so_in_one_sentence() -> None:
    command = ["unshare", "--user", sys.executable, DEMO]  # root is nobody there
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == ("demo-k8s: you are not root, who starts a kubelet\n  run it as root\n")


def test_it_leaves_nothing_when_it_is_terminated() -> None:
    with subprocess.Popen([sys.executable, DEMO], stdout=subprocess.DEVNULL, text=True) as demo:
        wait_until(lambda: left(demo), "the node begins", 60)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 128 + signal.SIGTERM
    assert left(demo) == []
