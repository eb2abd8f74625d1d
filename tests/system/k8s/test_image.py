"""The image of cgpu's programs in a cluster, built by docker without a network, and run."""

from __future__ import annotations

import platform
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from cgpu_env.version import VERSION
from lab.products.image import build, make_context

if TYPE_CHECKING:
    from pathlib import Path

    from lab.containers.engines import Docker

pytestmark = pytest.mark.system

MOST_FILES = 1000
PRIVILEGED = ["--user=0", "--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined"]
# Installs what claims need on a node, which is the container itself, and has no driver.
_INSTALL = """
from pathlib import Path
from cgpu_k8s.dra import node_programs, programs
place = node_programs.NodePlace("/opt/cgpu-dra", 1, Path("/run/cdi"), "/run/cgpu")
files = programs.collect_programs()
print(files.name, len(files.files), sep="\\n")
print(node_programs.NodePrograms(place, files).find_problem())
"""
# As the chart's other pods run it.
CONFINED = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]


@pytest.fixture(scope="module")
def context(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image is made of."""
    found = make_context(docker, tmp_path_factory.mktemp("context"))
    [wheel] = found.glob("*.whl")
    assert wheel.name.endswith(f"_{platform.machine()}.whl")
    return found


@pytest.fixture(scope="module")
def image(docker: Docker, context: Path) -> str:
    build(docker, context, "cgpu")
    return "cgpu"


@pytest.mark.parametrize("module", ["cgpu_k8s.extender", "cgpu_k8s.guard"])
def test_the_image_has_the_programs_and_needs_no_rights(
    docker: Docker, image: str, module: str
) -> None:
    shown = docker.run(image, "python3", "-m", module, "--version", options=CONFINED)
    assert VERSION in shown.stdout
    # What it imports only when it serves is there too: it gets as far as to look for its cluster.
    ended = docker.run(image, "python3", "-m", module, options=CONFINED, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "there is no kubeconfig" in ended.stderr


def test_dra_4_its_python_can_be_installed_on_a_node(docker: Docker, image: str) -> None:
    shown = docker.run(image, "python3", "-c", _INSTALL, options=PRIVILEGED)
    name, count, problem = shown.stdout.splitlines()
    assert name.startswith(f"{VERSION}-")
    assert int(count) < MOST_FILES
    assert problem.startswith("no NVIDIA driver found on this machine")  # by the folder's Python


def test_nobody_is_root_in_it(docker: Docker, image: str) -> None:
    assert docker.run(image, "id", "-u", options=CONFINED).stdout.strip() == "65532"
    assert docker.run(image, "ls", "/usr/share/cgpu", check=False).returncode


def test_no_other_libraries_come_into_it_than_those_that_are_pinned(
    docker: Docker, context: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(context, tmp_path / "context")
    pins = (other / "constraints.txt").read_text()
    (other / "constraints.txt").write_text(re.sub(r"(?m)^yarl==.*$", "yarl==0.1", pins))
    built = build(docker, other, "cgpu-other", check=False)
    assert built.returncode
    assert "yarl" in built.stdout + built.stderr
