"""Facts about the node: asked of the driver once, and again when they may have changed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_node.facts import driver
from cgpu_node.facts.node import DeviceNode
from cgpu_node.settings import rules
from cgpu_node.settings.config import Config, find_unknown_gpus, load_config, make_defaults
from lab.driver.fake_probe import MIB, UUID, FakeDriver, fake_driver, load

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit
POLICIES = rules.format_allowed("policy")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "expected a file"),
        (os.mkfifo, "expected a file"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    ],
)
def test_a_configuration_that_is_no_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    """Only where nothing is there the defaults hold: a link that broke once led to a cap."""
    path = tmp_path / "config.toml"
    assert load_config(str(path)) == Config()
    make(path)
    with pytest.raises(CgpuError) as refusal:
        load_config(str(path))
    where = ", where its link leads" if path.is_symlink() else ""
    assert str(refusal.value) == f"{path}: {why}{where}"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return fake_driver(tmp_path, monkeypatch)


def test_the_driver_is_asked_once_and_then_node_json_answers(fake: FakeDriver) -> None:
    first, second = load(fake), load(fake)
    assert fake.asked == ["facts", "contexts"]
    assert first == second
    (gpu,) = first.gpus
    assert (gpu.index, gpu.uuid, gpu.total_bytes) == (0, UUID, 15109 * MIB)
    assert gpu.context_bytes == 100 * MIB
    assert gpu.device_nodes == (DeviceNode("/dev/nvidia3", "/dev/nvidia3"),)
    assert first.libraries == {s: f"{fake.folder}/{s}.535" for s in driver.PROXIED}
    assert first.driver_version == "535.309.01"
    assert first.notes == ()


def test_node_json_is_only_for_its_owner(fake: FakeDriver) -> None:
    load(fake)
    path = fake.folder.parent / "state" / "node.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("change", ["touch", "replace", "relink", "manifest", "damage", "boot"])
def test_the_driver_is_asked_again_when_facts_may_have_changed(
    fake: FakeDriver, change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(fake)
    library = fake.folder / "libcuda.so.1"
    if change == "touch":
        os.utime(library, ns=(1, 1))
    elif change == "replace":
        (fake.folder / "libcuda.so.1.535").write_bytes(b"\x7fELF another")
    elif change == "relink":
        (fake.folder / "libcuda.so.1.550").write_bytes(b"\x7fELF library")
        library.unlink()
        library.symlink_to("libcuda.so.1.550")
    elif change == "manifest":
        manifest = {"device_nodes": {"common": [], "gpus": []}}
        (fake.folder / "driver.json").write_text(json.dumps(manifest))
    elif change == "damage":
        (fake.folder.parent / "state" / "node.json").write_text('{"identity": ')
    else:
        (tmp_path / "boot_id").write_text("another boot")
        monkeypatch.setattr("cgpu_node.facts.node.BOOT_ID", str(tmp_path / "boot_id"))
    load(fake)
    assert fake.asked == ["facts", "contexts"] * 2
    load(fake)
    assert len(fake.asked) == 4


def test_the_driver_is_asked_again_where_other_gpus_may_be_opened(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENV-13: each job of Slurm sees its own GPUs. Root may open all, whatever their mode."""
    (fake.folder / "driver.json").write_text('{"device_nodes": {"common": [], "gpus": []}}')
    for name in ("gpu0", "gpu1", "gpu2.json", "machine"):
        (fake.folder / name).touch()
    refused: set[str] = set()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name not in refused)
    for expected, names in ((2, ()), (4, ("gpu0",)), (6, ("gpu1",)), (6, ("gpu1", "gpu2.json"))):
        refused.clear()
        refused.update(names)
        load(fake)
        assert len(fake.asked) == expected


def test_refresh_asks_again_but_for_what_a_context_costs(fake: FakeDriver) -> None:
    """To measure that takes memory of GPUs that may be full."""
    first = load(fake)
    fake.answers["contexts"] = {}
    assert load(fake, refresh=True) == first
    assert fake.asked == ["facts", "contexts", "facts"]


def test_facts_of_a_release_that_did_not_ask_for_cudas_order_are_old(fake: FakeDriver) -> None:
    load(fake)
    path = fake.folder.parent / "state" / "node.json"
    facts = json.loads(path.read_text())
    del facts["cuda_order"]
    path.write_text(json.dumps(facts))
    assert load(fake).cuda_order == (UUID,)
    assert fake.asked == ["facts", "contexts"] * 2


def test_what_a_context_costs_is_measured_until_it_is_known(fake: FakeDriver) -> None:
    fake.answers["contexts"] = "cuInit: error 999"
    load(fake)
    fake.answers["contexts"] = {UUID: 100 * MIB}
    assert load(fake, refresh=True).gpus[0].context_bytes == 100 * MIB


def test_a_driver_that_does_not_answer_is_one_sentence_and_nothing_is_kept(
    fake: FakeDriver,
) -> None:
    fake.answers["facts"] = "no answer within 120 s"
    with pytest.raises(CgpuError, match=r"^the NVIDIA driver in .* does not answer: no answer"):
        load(fake)
    assert not (fake.folder.parent / "state" / "node.json").exists()


def test_what_to_do_about_a_driver_is_its_hint(fake: FakeDriver) -> None:
    fake.answers["facts"] = "nvmlInit_v2: Driver/library version mismatch (error 18); reboot"
    with pytest.raises(CgpuError) as refusal:
        load(fake)
    assert str(refusal.value).endswith("nvmlInit_v2: Driver/library version mismatch (error 18)")
    assert refusal.value.hint == "reboot"


def test_an_unknown_context_cost_is_zero_with_a_note(fake: FakeDriver) -> None:
    fake.answers["contexts"] = "cuInit: error 999"
    node = load(fake)
    assert node.gpus[0].context_bytes == 0
    assert node.notes == (
        "what a CUDA context costs is not known, so none is charged: cuInit: error 999",
    )


def test_the_manifest_names_the_device_nodes(fake: FakeDriver) -> None:
    manifest = {
        "device_nodes": {
            "common": [{"host": "machine", "container": "/dev/cgpu-sim/machine"}],
            "gpus": [[{"host": "gpu0", "container": "/dev/cgpu-sim/gpu0"}]],
        }
    }
    (fake.folder / "driver.json").write_text(json.dumps(manifest))
    node = load(fake)
    assert node.device_nodes == (DeviceNode(f"{fake.folder}/machine", "/dev/cgpu-sim/machine"),)
    assert node.gpus[0].device_nodes == (DeviceNode(f"{fake.folder}/gpu0", "/dev/cgpu-sim/gpu0"),)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device_nodes": {"common": [{}], "gpus": []}}'])
def test_a_damaged_manifest_is_refused(fake: FakeDriver, text: str) -> None:
    (fake.folder / "driver.json").write_text(text)
    with pytest.raises(CgpuError, match=r"driver\.json: expected device_nodes"):
        load(fake)


def test_a_directory_without_the_libraries_is_refused(fake: FakeDriver, tmp_path: Path) -> None:
    """CLI-8."""
    with pytest.raises(CgpuError, match=r"no libcuda\.so\.1 there"):
        load(fake, driver_dir=str(tmp_path))
    with pytest.raises(CgpuError, match=r"/nowhere: there is no such directory$"):
        load(fake, driver_dir=f"{tmp_path}/nowhere")


def test_no_driver_anywhere_says_how_to_name_one(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-8."""
    monkeypatch.setattr(driver, "SEARCHED", ("/nowhere",))
    with pytest.raises(CgpuError, match="no NVIDIA driver found") as refusal:
        load(fake, driver_dir=None)
    assert "--driver-dir" in refusal.value.hint


def test_a_searched_directory_that_others_could_change_is_passed_over(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-4: a user may own one of them, and the driver may be in a later one."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in driver.PROXIED:
        (theirs / name).write_text("")
    theirs.chmod(0o777)
    monkeypatch.setattr(driver, "SEARCHED", (str(theirs), str(fake.folder)))
    assert driver.find_driver_dir() == str(fake.folder)
    monkeypatch.setattr(driver, "SEARCHED", (str(theirs),))
    with pytest.raises(CgpuError, match=f"^{theirs}: others could change it: expected"):
        driver.find_driver_dir()


def test_a_proxy_is_not_taken_for_a_driver(fake: FakeDriver) -> None:
    """Inside a session the driver library is a proxy: its share cannot be divided again."""
    proxy = b"\x7fELF\0/dev/cgpu/./././real/libcuda.so.1\0"
    (fake.folder / "libcuda.so.1.535").write_bytes(proxy)
    with pytest.raises(CgpuError, match="already inside a cgpu container or session"):
        load(fake)


def test_the_configuration_decides_over_the_defaults(fake: FakeDriver) -> None:
    """CLI-8."""
    defaults = load(fake)
    assert (defaults.config.max_inst, defaults.config.overcommit) == (20, False)
    text = f"""
[node]
max_inst = 25
overcommit = true
policy = 2
prio_ratio = 99
[driver]
library_dir = "{fake.folder}"
"""
    node = load(fake, text, driver_dir=None)
    assert (node.config.max_inst, node.config.overcommit) == (25, True)
    assert (defaults.config.policy, defaults.config.prio_ratio) == (6, 80)
    assert (node.config.policy, node.config.prio_ratio) == (2, 99)
    assert node.driver_dir == str(fake.folder)


def test_the_configured_default_size_has_a_unit_if_it_is_written_with_one(
    tmp_path: Path,
) -> None:
    """ENV-4."""
    path = tmp_path / "config.toml"
    for text, kept in (("512MiB", 512 << 20), (" 40%", "40%"), ("6/15", "6/15"), ("0%", 0)):
        path.write_text(f"[node]\ndefault_memsize = '{text}'\n")
        assert load_config(str(path)).default_memsize == kept
    path.write_text(f"[node]\ndefault_memsize = {1 << 30}\n")
    assert load_config(str(path)).default_memsize == 1 << 30
    path.write_text("")
    assert load_config(str(path)).default_memsize == 0


def test_the_configuration_has_rules_of_single_gpus(fake: FakeDriver) -> None:
    """SCH-9: by index or UUID, of which the UUID goes first; policies by name too."""
    uuid = "GPU-6B2D7B82-9fca-5904-af21-8bac6234f891"  # GPU 1
    text = f"""
[node]
policy = "Weighted preemptive"
[gpu.0]
policy = "fixed"
max_inst = 10
[gpu.{uuid}]
policy = 5
[gpu.1]
policy = "soft"
prio_ratio = 50
[gpu.7]
"""
    node = load(fake, text)
    gpus = [node.gpus[0]._replace(index=i, uuid=f"{uuid[:-1]}{i}".lower()) for i in range(3)]
    defaults = make_defaults(node.config, gpus)
    assert [defaults.for_gpu(gpu.uuid) for gpu in gpus] == [
        rules.Rules(3, 10, 80),
        rules.Rules(5, 20, 50),
        rules.Rules(2, 20, 80),
    ]
    assert find_unknown_gpus(node.config, gpus) == ["7"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[node]\nmax_inst = 0", "max_inst = 0: expected a whole number from 1 to 25"),
        ("[node]\nmax_inst = 26", "max_inst = 26: expected a whole number from 1 to 25"),
        ("[node]\nmax_inst = true", "max_inst = True: expected a whole number from 1 to 25"),
        ('[node]\nmax_inst = "5"', "max_inst = 5: expected a whole number from 1 to 25"),
        ("[node]\ndefault_memsize = -1", "default_memsize = -1: expected 0 for none or at"),
        (
            "[node]\ndefault_memsize = 2",
            "default_memsize = 2: expected 0 for none or at least 1MiB",
        ),
        ("[node]\ndefault_memsize = '101%'", "default_memsize = 101%: expected 0 for none or at"),
        ("[node]\ndefault_memsize = '4/3'", "default_memsize = 4/3: expected 0 for none or at"),
        ("[node]\ndefault_memsize = true", "default_memsize = True: expected 0 for none or at"),
        ("[node]\npolicy = 99", f"policy = 99: expected {POLICIES}"),
        ("[node]\npolicy = 'fare'", f"policy = fare: expected {POLICIES}"),
        ("[gpu.0]\npolicy = 'fixd'", f"expected {POLICIES}: did you mean fixed?"),
        ("[gpu.0]\npolicy = 'x'", f"policy = x: expected {POLICIES}"),
        ("[gpu.0]\nmemory = 1", "[gpu.0] has no key memory: expected one of max_inst, policy,"),
        ("[gpu.0]\novercommit = true", "[gpu.0] has no key overcommit: expected one of max_inst"),
        ("[gpu]\npolicy = 'fixed'", "[gpu.policy]: expected the index or the whole UUID of a GPU"),
        ("[gpu.GPU-8f3a]\npolicy = 3", "[gpu.GPU-8f3a]: expected the index or the whole UUID"),
        ("[gpu]\n0 = 'fixed'", "gpu.0: expected a table, [gpu.0] on a line of its own"),
        ("[node]\nprio_ratio = 19", "prio_ratio = 19: expected a whole number from 20 to 99"),
        ("[node]\novercommit = 1", "overcommit = 1: expected true or false"),
        ("[node]\nlibrary_dir = '/x'", "[node] has no key library_dir: expected one of max_inst"),
        ("[driver]\nlibrary_dir = 'x'", "library_dir = x: expected the absolute path"),
        ("[server]\nmetrics = 9477", "metrics = 9477: expected an address and a port"),
        ("[audit]\ninterval_seconds = 0.05", "interval_seconds = 0.05: expected a number of"),
        ("[audit]\ninterval_seconds = true", "interval_seconds = True: expected a number of"),
        ("[audit]\naction = 'kil'", "action = kil: expected one of log, kill, off"),
        ("[audit]\naction = ['kill']", "action = ['kill']: expected one of log, kill, off"),
        ("[other]\nx = 1", "other: expected the tables node, gpu, driver, server, audit only"),
        ("node = 1", "node: expected a table, [node] on a line of its own"),
        ("[node", "not TOML"),
        ("a = " + "[" * 3000, "not TOML"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(fake: FakeDriver, text: str, sentence: str) -> None:
    with pytest.raises(CgpuError) as refusal:
        load(fake, text)
    assert sentence in str(refusal.value)
    assert "config.toml: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_rel_1_a_configuration_that_others_could_change_is_refused(fake: FakeDriver) -> None:
    """Whoever can write ``overcommit = true`` lifts the sum of the caps."""
    load(fake)
    path = fake.folder.parent / "config.toml"
    path.chmod(0o666)
    with pytest.raises(CgpuError, match=r"config\.toml: others could change it: expected"):
        load(fake)


def test_the_start_path_imports_nothing_heavy() -> None:
    """DESIGN 2: these modules run whenever a container starts."""
    heavy = "argparse pathlib subprocess tomllib typing dataclasses logging shutil ctypes pynvml"
    code = (
        "import sys, cgpu_node.facts.node, cgpu_node.paths;"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
