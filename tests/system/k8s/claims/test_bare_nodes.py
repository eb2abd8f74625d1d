"""Claims on a node without Python and cgpu, where the chart is all that is installed. DRA-4.

The driver runs as the chart's pod would, with its arguments, in mounts of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cgpu_k8s.dra.programs import OTHERS, PACKAGES
from cgpu_node import code_bundle
from lab.cluster.bare_node import PROGRAMS, BareNode
from lab.cluster.dra_node import Claiming, claim, claiming, claiming_cluster
from lab.containers.enclosure import wait_until
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.programs import Release, newer
from lab.machine.node import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]


@pytest.fixture(scope="module", name="bare_cluster")
def _bare_cluster(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> Iterator[Claiming]:
    folder = tmp_path_factory.mktemp("plane")
    with claiming_cluster(folder, release, debian_root, kind=BareNode) as kubectl:
        kubectl.install()
        yield kubectl


def install_another(folder: Path) -> Path:
    """Make a folder with the packages of another version, as an image has them."""
    folder.mkdir()
    for path in code_bundle.import_path():
        for name in (*PACKAGES, *OTHERS):
            for found in Path(path).glob(f"{name}*"):
                if found.is_dir() and found.name == name:
                    shutil.copytree(found, folder / name)
                elif found.suffix in {".py", ".so"}:
                    shutil.copyfile(found, folder / found.name)
    shutil.copytree(ROOT / "k8s" / "cgpu_k8s", folder / "cgpu_k8s")
    with (folder / "cgpu_env" / "version.py").open("a") as file:
        file.write("VERSION += '.1'\n")
    return folder


def test_dra_4_a_node_without_python_and_cgpu_needs_the_chart_alone_and_is_left_as_it_was(
    bare_cluster: Claiming, tmp_path: Path
) -> None:
    kubectl = bare_cluster
    node = cast("BareNode", kubectl.node)
    assert node.run_there("sh", "-c", "python3 -c 1 2>&1 || echo none").endswith("none\n")
    before = node.list_files()

    node.start_driver()
    kubectl.await_devices()
    [version] = node.versions()
    kubectl.create(claim("part", memory="2500Mi", cores="33"), claiming("one", "part"))
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [2500]
    log = ("sh", "-c", "cat /run/cgpu/cgpud.log 2>/dev/null || true")
    wait_until(lambda: "INFO serving" in node.run_there(*log), "cgpud serves", PATIENCE)
    assert {*node.list_programs()} == {f"{PROGRAMS}/{version}/lib/cgpu-loader"}

    # A newer driver: what runs, and starts again, has what it had.
    node.stop("driver", by="TERM")
    assert "left_programs" in node.log("driver")
    assert node.versions() == [version]
    node.packages = install_another(tmp_path / "packages")
    node.start_driver()
    kubectl.await_devices()
    wait_until(lambda: len(node.versions()) == len("ab"), "both versions are there", PATIENCE)
    kubectl.create(claim("late", memory="1Gi"), claiming("two", "late"))
    [late] = kubectl.running("two")
    assert [*kubectl.seen(late).values()] == [1024]
    assert [*kubectl.seen(pod).values()] == [2500]
    assert f"{PROGRAMS}/{version}/" not in str(node.specification(late, "main")["hooks"])

    kubectl("delete", "pods", "--all", "--grace-period=1")
    wait_until(lambda: not node.containers(), "nothing is held", PATIENCE)
    node.stop("driver", by="TERM")
    assert "removed_programs" in node.log("driver")
    assert node.list_files() == before
    assert node.list_programs() == []
