"""The commands of docs/kubernetes.md, from an empty cluster on, print what the page shows.

What a cluster's controllers and kubelets would start from the chart, the test starts: no
controllers run here. ``kubectl exec`` goes by the engine's client, as the kubelet serves nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from lab.kubernetes import chart, scheduler
from lab.kubernetes.control_plane import ACCOUNT, ControlPlane, control_plane
from lab.kubernetes.kubectl import Kubectl
from lab.kubernetes.kubelet import kubelet_node
from lab.kubernetes.programs import Release
from lab.machine.cri import IMAGE
from lab.machine.node import T4
from lab.worlds.guard import guarding

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "kubernetes.md"
BEGIN = "## From an empty cluster to two pods on one GPU"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXEC = re.compile(r"kubectl exec (\S+) -- (.+)")
ANY = "..."
ADDRESS = "10.0.0.7"  # of the page's node; the kubelet of the tests has none


def blocks() -> list[tuple[str, str]]:
    """Language and content of the blocks of the section."""
    page = PAGE.read_text()
    section = page[page.index(BEGIN) + len(BEGIN) :]
    return FENCE.findall(section[: section.index("\n## ")])


def steps(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *printed = part.splitlines()
        yield command, printed


def matches(printed: list[str], shown: list[str]) -> bool:
    """Whether lines are as shown, where a line of three dots stands for any number of them."""
    if not shown:
        return not printed
    if shown[0] == ANY:
        return any(matches(printed[n:], shown[1:]) for n in range(len(printed) + 1))
    expected = shown[0].replace(ADDRESS, "unknown").split()
    return bool(printed) and printed[0].split() == expected and matches(printed[1:], shown[1:])


class Reader:
    """Somebody who follows the page on a cluster with a node."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self._kubectl, self._folder = kubectl, folder
        bin_ = folder / "bin"
        bin_.mkdir()
        for name in ("helm", "kubectl"):
            (bin_ / name).symlink_to(chart.program(name))
        plugin = bin_ / "kubectl-inspect-cgpu"
        plugin.write_text(
            f"#!/bin/sh\nPYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
            f' exec {sys.executable} -m cgpu_k8s.inspect.main "$@"\n'
        )
        plugin.chmod(0o755)
        (folder / "deploy").symlink_to(ROOT / "deploy")
        self._environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(kubectl.node.plane.kubeconfig()),
        }

    def writes(self, content: str) -> None:
        """Make the file of pods that a block shows, for the image and the network of the tests."""
        name = content.splitlines()[0].removeprefix("# ")
        pods = list(yaml.safe_load_all(content))
        for pod in pods:
            pod["spec"] |= {"hostNetwork": True, "terminationGracePeriodSeconds": 0}
            for container in pod["spec"]["containers"]:
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        (self._folder / name).write_text(yaml.safe_dump_all(pods))

    def prints(self, command: str) -> list[str]:
        """What a command prints; errors too."""
        inside = EXEC.fullmatch(command)
        if inside:
            [pod] = self._kubectl.running(inside[1])
            return self._kubectl.execute(pod, "main", *shlex.split(inside[2])).splitlines()
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        return ended.stdout.splitlines()


@pytest.fixture
def plane(tmp_path: Path, release: Release) -> Iterator[ControlPlane]:
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, release) as running:
        yield running


def test_each_command_prints_what_the_page_shows(
    plane: ControlPlane, tmp_path: Path, debian_root: Path
) -> None:
    with (
        kubelet_node(plane, debian_root, "default", T4, T4, agent=False) as node,
        ExitStack() as programs,
    ):
        reader = Reader(Kubectl(node), tmp_path)
        for language, content in blocks():
            if language == "yaml":
                reader.writes(content)
            if language != "console":
                continue  # what is done on the nodes, which the fixture has done
            for command, shown in steps(content):
                printed = reader.prints(command)
                assert matches(printed, shown), "\n".join([command, *printed])
                if command.startswith("helm install"):
                    node.start_agent()
                    programs.enter_context(guarding(plane))
                    programs.enter_context(scheduler.scheduling(plane, user=ACCOUNT))
