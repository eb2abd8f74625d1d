"""Which versions of Kubernetes the tests run on, how CI names them, and on which ports."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from lab.kubernetes import programs

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
NEWER = "v1.36.2"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A folder of programs that know their version, and nothing else."""
    folder = tmp_path / "newer"
    folder.mkdir()
    for name in PROGRAMS:
        answers(folder / name, f"Kubernetes {NEWER}")
    return folder


def answers(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\necho {line}\n")
    path.chmod(0o755)


def test_tests_run_on_the_version_in_the_named_folder_too(
    newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CGPU_KUBERNETES", raising=False)
    find = programs.releases.__wrapped__
    assert find() == (oldest := programs.Release("1.20.2"),)
    monkeypatch.setenv("CGPU_KUBERNETES", str(newer))
    found = programs.Release("1.36.2", newer)
    assert find() == (oldest, found)
    assert (oldest.has_policies, oldest.has_controllers) == (False, False)
    assert (found.has_policies, found.has_controllers) == (True, True)
    assert found.program("kubelet") == newer / "kubelet"
    assert found.program("etcd") == "etcd"  # the machine's
    (newer / "kube-apiserver").unlink()
    with pytest.raises(pytest.UsageError, match=f"CGPU_KUBERNETES={newer}: "):
        find()


def listed(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What ``make test`` shows before it tests, where the oldest version is built."""
    script = ["sh", ROOT / "deploy" / "kubernetes.sh"]
    named = {"CGPU_CACHE": str(tmp_path / "cache"), "CGPU_KUBERNETES": str(folder)}

    def shown(word: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*script, word], env=os.environ | named, capture_output=True, text=True, check=False
        )

    [built] = re.findall(r"is not in (\S+): build it", shown("-n").stderr) or [tmp_path]
    Path(built).mkdir(parents=True, exist_ok=True)
    return shown("-l")


def test_a_run_shows_which_versions_it_tests_on(newer: Path, tmp_path: Path) -> None:
    assert re.fullmatch(
        rf"Kubernetes 1\.20\.2 in {tmp_path}/cache/\S+\nKubernetes 1\.36\.2 in {newer}\n",
        listed(newer, tmp_path).stdout,
    )
    for name in PROGRAMS:
        answers(newer / name, "Kubernetes v1.35.0")
        done = listed(newer, tmp_path)
        assert done.returncode == 1
        assert f"CGPU_KUBERNETES={newer} has programs of Kubernetes v1.3" in done.stderr
        (newer / name).unlink()
        done = listed(newer, tmp_path)
        assert done.returncode == 1
        assert f"CGPU_KUBERNETES={newer} has no {name} that runs: " in done.stderr
        answers(newer / name, f"Kubernetes {NEWER}")


def test_make_test_shows_them_before_it_tests() -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-C", str(ROOT), "--dry-run", "--no-print-directory", "test"]
    steps = subprocess.run(command, env=alone, capture_output=True, text=True, check=True).stdout
    assert steps.index("sh deploy/kubernetes.sh -l\n") < steps.index('-m "not gpu" tests')


def test_ci_names_a_newer_version_that_is_beside_the_checkout(newer: Path, tmp_path: Path) -> None:
    run = tmp_path / "checkout" / ".ci" / "run"
    run.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", run)
    (tmp_path / "bin").mkdir()
    answers(tmp_path / "bin" / "make", '"$1" on "${CGPU_KUBERNETES:-nothing newer}"')
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment.pop("CGPU_KUBERNETES", None)

    def tests_on() -> str:
        return subprocess.run(
            [run], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert tests_on() == "test on nothing newer\n"
    shared = tmp_path / "shared" / "kubernetes-1.36.2"
    shared.mkdir(parents=True)
    answers(shared / "unpack.sh", str(newer))
    assert tests_on() == f"test on {newer}\n"


class Drawn:
    """Chance that draws these numbers, and notes from which range."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.ranges = [*numbers], list[tuple[int, int]]()

    def randrange(self, low: int, high: int) -> int:
        self.ranges.append((low, high))
        return self.numbers.pop(0)


@pytest.mark.parametrize(("clients", "end"), [("32768\t60999", 32768), ("1024\t65535", 20000)])
def test_a_free_port_is_nobodys_and_no_client_is_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: str, end: int
) -> None:
    (tmp_path / "range").write_text(f"{clients}\n")
    monkeypatch.setattr(programs, "_CLIENTS", tmp_path / "range")
    free = programs.free_port()
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        taken = int(used.getsockname()[1])
        drawn = Drawn(taken, free)
        monkeypatch.setattr(programs, "_CHANCE", drawn)
        assert programs.free_port() == free
    assert drawn.ranges == [(10_000, end)] * 2


def test_processes_whose_chance_begins_alike_choose_other_ports() -> None:
    """As those of one run of tests."""

    def ports() -> list[int]:
        random.seed(3)
        return [programs.free_port() for _ in range(4)]

    before = random.getstate()
    assert ports() != ports()
    random.setstate(before)
