"""What cgpu-smi and the metrics call a container (CLI-3), and the table of engines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_node.facts.engines import ENGINES
from cgpu_node.shares.names import name_of
from cgpu_node.shares.record import Owner, Record

if TYPE_CHECKING:
    from cgpu_node.shares.record import Kind

pytestmark = pytest.mark.unit
LAUNCHER = Path(__file__).parents[3] / "hook/common/document.c"


def record(runtime: Path | None, kind: Kind = "container", command: str = "/bin/train") -> Record:
    owner = Owner(1, 1, str(runtime) if runtime else None)
    return Record("abc", kind, owner, (), 1, False, 6, (command, "-x"), "/nowhere")  # noqa: FBT003


def created(folder: Path, config: dict[str, Any], *, crun: bool = False) -> Record:
    """A container as runc or crun leaves it, with this configuration."""
    bundle, runtime = folder / "bundle", folder / "runtime"
    bundle.mkdir(parents=True)
    runtime.mkdir()
    (bundle / "config.json").write_text(json.dumps(config))
    if crun:
        (runtime / "status").write_text(json.dumps({"bundle": str(bundle)}))
    else:
        labels = ["other=1", f"bundle={bundle}"]
        (runtime / "state.json").write_text(json.dumps({"config": {"labels": labels}}))
    return record(runtime)


CRI = {
    "io.kubernetes.cri.sandbox-namespace": "prod",
    "io.kubernetes.cri.sandbox-name": "web-0",
    "io.kubernetes.cri.container-name": "model",
}
CRIO = {
    "io.kubernetes.pod.namespace": "prod",
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.container.name": "model",
}


@pytest.mark.parametrize("crun", [False, True])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"annotations": CRI, "hostname": "h"}, "prod/web-0/model"),
        ({"annotations": CRIO, "hostname": "h"}, "prod/web-0/model"),
        ({"annotations": {"io.kubernetes.container.name": "model"}}, "model"),
        ({"annotations": {"nerdctl/name": "busy_bee"}, "hostname": "h"}, "busy_bee"),
        ({"annotations": {"other": "x"}, "hostname": "h"}, "h"),
        ({"annotations": None, "mounts": None}, ""),
        ({"annotations": [1], "mounts": [1, {"destination": "/etc/hostname"}]}, ""),
    ],
)
def test_the_engines_annotations_name_it(
    tmp_path: Path, config: dict[str, Any], name: str, *, crun: bool
) -> None:
    assert name_of(created(tmp_path, config, crun=crun)) == name


def test_docker_keeps_the_name_beside_the_files_that_it_mounts(tmp_path: Path) -> None:
    (tmp_path / "config.v2.json").write_text(json.dumps({"Name": "/brave_bell"}))
    mount = {"destination": "/etc/hostname", "source": str(tmp_path / "hostname")}
    assert name_of(created(tmp_path, {"mounts": [mount], "hostname": "h"})) == "brave_bell"


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_podman_keeps_the_names_of_all_in_its_storage(tmp_path: Path, file: str) -> None:
    made = created(tmp_path / "abc", {"hostname": "h"})
    listed = [1, {"id": "other", "names": ["wrong"]}, {"id": "abc", "names": ["busy_bee", "x"]}]
    (tmp_path / file).write_text(json.dumps(listed))
    assert name_of(made) == "busy_bee"


@pytest.mark.parametrize("text", ["{}", "[]", '[{"id": "abc"}]', '[{"id": "abc", "names": []}]'])
def test_without_a_name_in_podmans_storage_the_host_name_is_left(tmp_path: Path, text: str) -> None:
    made = created(tmp_path / "abc", {"hostname": "h"})
    (tmp_path / "containers.json").write_text(text)
    assert name_of(made) == "h"


def test_a_container_goes_by_a_new_name_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created(tmp_path / "abc", {"hostname": "h"})
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for name in ("old", "new"):
        entry = {"id": "abc", "names": [name]}
        (tmp_path / "containers.json").write_text(json.dumps([entry]))
        assert name_of(made) == name
        now += 5


def test_what_is_mounted_need_not_be_a_file(tmp_path: Path) -> None:
    """REL-5: whoever starts containers says what is mounted as /etc/hostname."""
    os.mkfifo(tmp_path / "config.v2.json")
    mount = {"destination": "/etc/hostname", "source": str(tmp_path / "hostname")}
    assert name_of(created(tmp_path, {"mounts": [mount], "hostname": "h"})) == "h"


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100000])
def test_files_that_make_no_sense_give_no_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert name_of(record(tmp_path)) == ""
    assert name_of(record(None)) == ""


def test_a_session_goes_by_its_program() -> None:
    assert name_of(record(None, "session")) == "train"


def test_the_launcher_finds_the_pods_of_all_engines_by_one_word() -> None:
    """Else it would start a pod's container without asking whether one was allocated to it."""
    [word] = re.findall(r'has_word\(document, "\\"(io[a-z.]+)"\)', LAUNCHER.read_text())
    firsts = [row.pod_keys[0] for row in ENGINES if row.pod_keys]
    assert len(firsts) > 1
    assert all(key.startswith(word) for key in firsts)


def test_the_rows_of_engines_differ() -> None:
    for column in ("name", "config", "scope", "pod_keys", "name_keys", "version"):
        values = [value for row in ENGINES if (value := getattr(row, column))]
        assert len(set(values)) == len(values), column
