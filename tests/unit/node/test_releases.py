"""What one release makes of the files of another: nobody's share or life is lost (REL-2)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import cgpu_native
from cgpu_env import CgpuError, version
from cgpu_native import policies
from cgpu_node import installation
from cgpu_node.settings import rules
from cgpu_node.shares import compute, record
from cgpu_node.shares.registry import Owner, Registry
from cgpu_upgrade import layouts, living
from lab.shares import changing
from lab.worlds.registry import MIB, TOTAL, UUIDS, admit, ask, leftovers, myself

pytestmark = pytest.mark.unit

ANOTHER = 99


def rewrite(directory: str | Path, **fields: object) -> None:
    path = Path(directory, record.FILE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def renumber(path: str | Path) -> None:
    """Make a page or ledger one of another version."""
    with Path(path).open("r+b") as file:
        file.seek(4)
        file.write(struct.pack("<I", ANOTHER))


def dead() -> Owner:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Owner(process.pid, 1, None)


def later(registry: Registry) -> str:
    """A container whose record a later release has written in its own way."""
    directory = admit(registry, "later", ask(TOTAL - MIB, weight=3))
    gpus = [[0, UUIDS[0], TOTAL - MIB, "more"]]
    owner = [*myself(), "more"]
    rewrite(directory, version=2, gpus=gpus, owner=owner, colour="blue", command={"a": 1})
    return directory


def test_a_later_releases_container_lives_and_keeps_its_share(registry: Registry) -> None:
    later(registry)
    (entry,) = registry.reap(registry.find_gone())
    assert (entry.id, entry.version, entry.weight) == ("later", 2, 3)
    assert entry.gpus[0].cap_bytes == TOTAL - MIB
    admit(registry, "one", ask(MIB))
    with pytest.raises(CgpuError, match="where 0 of"):
        admit(registry, "two", ask(MIB))


def test_a_later_releases_container_that_died_gives_its_share_back(registry: Registry) -> None:
    rewrite(later(registry), owner=dead())
    assert registry.reap(registry.find_gone()) == []
    assert leftovers(registry) == []


def test_a_damaged_record_of_which_nobody_lives_is_removed(registry: Registry) -> None:
    Path(admit(registry, "abc", ask(MIB)), record.FILE).write_text("{")
    assert registry.reap(registry.find_gone()) == []
    assert leftovers(registry) == []


def test_a_damaged_record_stays_as_long_as_a_process_sees_its_limits(registry: Registry) -> None:
    directory = Path(admit(registry, "abc", ask(MIB)))
    (directory / record.FILE).write_text('{"version": "none"}')
    script = 'mount --bind "$1" /etc/hostname && echo && read line'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(directory / "limits")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as guest:
        assert guest.stdout is not None
        assert guest.stdout.readline() == b"\n"
        assert registry.reap(registry.find_gone()) == []
        assert leftovers(registry) == ["abc"]
        guest.communicate(b"\n")
    registry.reap(registry.find_gone())
    assert leftovers(registry) == []


def test_0_1_0_reads_the_records_that_this_release_writes(registry: Registry) -> None:
    """It knows these fields and no others, and would take the container for a dead one."""
    directory = Path(admit(registry, "abc", ask(MIB)))
    fields = json.loads((directory / record.FILE).read_text())
    assert fields.pop("version") == 1
    names = {"id", "kind", "owner", "gpus", "weight", "high_priority", "policy", "command"}
    assert fields.keys() == names
    assert (len(fields["owner"]), len(fields["gpus"][0])) == (3, 3)
    assert {path.name for path in directory.iterdir()} == {"limits", "ledger", record.FILE}


def test_what_a_later_release_wrote_into_a_record_of_ours_is_kept(registry: Registry) -> None:
    rewrite(admit(registry, "abc", ask(MIB)), colour="blue")
    changing.change_container(registry, "abc", {"weight": 4}, rules.Defaults())
    (entry,) = registry.list_records()
    assert entry.weight == 4
    content = record.read_content(entry.directory)
    assert content is not None
    assert content["colour"] == "blue"


@pytest.mark.parametrize("file", ["record", "limits"])
def test_a_container_of_another_layout_is_not_changed_but_others_are(
    registry: Registry, file: str
) -> None:
    directory = Path(admit(registry, "later", ask(MIB)))
    admit(registry, "ours", ask(MIB))
    if file == "record":
        rewrite(directory, version=2)
    else:
        renumber(directory / "limits")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(CgpuError, match="made by release"):
        changing.change_container(registry, "later", {"weight": 4}, rules.Defaults())
    with pytest.raises(CgpuError, match="made by release"):
        changing.change_container(registry, "later", {"memsize": 2 * MIB}, rules.Defaults())
    changing.change_container(registry, "ours", {"weight": 4}, rules.Defaults())
    if file == "limits":
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert record.read_content(str(directory)) == json.loads(before[record.FILE])


def test_beside_a_page_of_another_version_containers_are_made(registry: Registry) -> None:
    directory = Path(admit(registry, "later", ask(MIB)))
    renumber(directory / "limits")
    before = (directory / "limits").read_bytes()
    admit(registry, "ours", ask(MIB))
    assert (directory / "limits").read_bytes() == before
    with pytest.raises(cgpu_native.FormatError):
        cgpu_native.set_bytes(directory / "limits", 0, "cap_bytes", 1)
    assert (directory / "limits").read_bytes() == before


def test_a_container_that_ends_while_another_is_made_is_no_fault(registry: Registry) -> None:
    """Its poststop hook removes files without the registry's lock."""
    directory = admit(registry, "ends", ask(MIB))
    entries = registry.list_records()
    Path(directory, "limits").unlink()
    parts = compute.divide_time(UUIDS[0], entries, rules.Rules(policies.NATIVE_POLICY))
    compute.write_parts(entries, {UUIDS[0]: parts})


def test_a_dead_container_that_its_hook_removes_at_the_same_moment_is_no_fault(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = admit(registry, "dead", ask(MIB), owner=dead())
    unlink = os.unlink

    def late(path: str) -> None:
        if Path(path).exists() and str(path).startswith(directory):
            unlink(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", late)
    admit(registry, "abc", ask(MIB))
    assert leftovers(registry) == ["abc"]


def test_a_page_names_the_release_that_made_it(registry: Registry) -> None:
    path = Path(admit(registry, "abc", ask(MIB)), "limits")
    head = cgpu_native.read_head(path)
    assert head is not None
    assert (head.version, head.release) == (cgpu_native.LIMITS_VERSION, version.VERSION)
    page = bytearray(path.read_bytes())
    page[112:128] = bytes(16)
    path.write_bytes(page)
    first = cgpu_native.read_head(path)
    assert first is not None
    assert first.release == "0.1.0"


def test_rules_of_another_version_are_told_apart_from_none(registry: Registry) -> None:
    path = Path(registry.state_dir, rules.FILE)
    assert not rules.is_foreign(registry.state_dir)
    rules.write_changes(registry.state_dir, {})
    assert not rules.is_foreign(registry.state_dir)
    rules.write_default(registry.state_dir, 1 << 30)
    living.check_rules(registry.state_dir, layouts.FIRST)
    rules.write_default(registry.state_dir, "40%")
    assert not rules.is_foreign(registry.state_dir)
    living.check_rules(registry.state_dir, layouts.own_layouts())
    with pytest.raises(CgpuError, match="which is of version 2"):
        living.check_rules(registry.state_dir, layouts.FIRST)
    path.write_text('{"version": 3}')
    assert rules.is_foreign(registry.state_dir)
    assert rules.read_changes(registry.state_dir) == {}
    with pytest.raises(CgpuError, match="which is of version 3"):
        living.check_rules(registry.state_dir, layouts.FIRST)


@pytest.mark.parametrize("name", layouts.CONTAINER)
def test_a_release_that_cannot_read_a_living_container_is_refused(
    registry: Registry, name: str
) -> None:
    directory = Path(admit(registry, "abc", ask(MIB)))
    living.check_containers(living.list_running(registry.state_dir), layouts.FIRST)
    reader = layouts.own_layouts()
    if name == "record":
        rewrite(directory, version=ANOTHER)
    elif name == "limits":
        renumber(directory / name)
    else:  # its version is the container's to write
        reader = reader._replace(reads={**reader.reads, name: [ANOTHER]})
    with pytest.raises(CgpuError) as refusal:
        living.check_containers(living.list_running(registry.state_dir), reader)
    release = version.VERSION
    assert f"cgpu {release} cannot read the files of running containers: " in str(refusal.value)
    assert f"abc ({release})" in str(refusal.value)
    assert "end them" in refusal.value.hint


def test_0_1_0_reads_what_this_release_writes() -> None:
    """Whoever changes a layout decides here from which release on there is a way back."""
    own = layouts.own_layouts()
    assert all(number in layouts.FIRST.reads[name] for name, number in own.writes.items())
    assert layouts.parse_layouts(json.dumps(own.as_json())) == own


def test_environments_are_found_by_the_links_beside_them(tmp_path: Path) -> None:
    for release in ("1.0", "2.0"):
        folder = tmp_path / f"cgpu-{release}/lib/python3.11/site-packages/cgpu_env"
        folder.mkdir(parents=True)
        (folder / "version.py").write_text(f'VERSION = "{release}"\n')
    prefix = tmp_path / "cgpu"
    prefix.symlink_to("cgpu-2.0")
    (tmp_path / "cgpu.back").symlink_to("cgpu-1.0")
    for name in ("cgpu", "cgpu.back", "cgpu-1.0", "cgpu-2.0"):
        found = installation.find_installation(str(tmp_path / name))
        assert found.prefix == str(prefix)
    assert installation.release_of(found.current_environment) == "2.0"
    assert found.previous_environment is not None
    assert installation.release_of(found.previous_environment) == "1.0"
    assert found.previous_environment == str(tmp_path / "cgpu-1.0")
    plain = installation.find_installation(str(tmp_path / "other"))
    assert (plain.prefix, plain.previous_environment) == (str(tmp_path / "other"), None)


def test_an_installation_knows_where_its_documents_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment has its own; a source tree names no other release's."""
    monkeypatch.setattr(installation, "own_environment", lambda: str(tmp_path))
    (tmp_path / "share" / "doc" / "cgpu").mkdir(parents=True)
    assert installation.find_shared_folder() == f"{tmp_path}/share"
    monkeypatch.setattr(installation, "own_environment", lambda: None)
    assert installation.find_shared_folder() is None
