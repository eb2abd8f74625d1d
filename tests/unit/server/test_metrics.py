"""What cgpud measures, against its documentation and Prometheus' own conventions (CLI-3, CLI-5)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cgpu_env import GpuShare
from cgpu_native.arbitration import Figures
from cgpu_node.exclusive import Exclusive
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.config import Config
from cgpu_node.settings.kubernetes import Kubernetes
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.record import Owner, PodContainer, Record, pack_pod
from cgpu_node.view import marks
from cgpu_node.view.processes import Holding
from cgpu_node.view.view import Compute, GpuUse, Use
from cgpu_server.audit import auditor
from cgpu_server.audit.snapshot import Snapshot
from cgpu_server.metrics import exporter
from cgpu_server.metrics.dcgm import DCGM
from cgpu_server.metrics.table import METRICS
from cgpu_server.serve import metrics_address

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

    from cgpu_server.audit.utilisation import Utilisation
    from cgpu_server.state.server_state import ServerState

pytestmark = pytest.mark.unit

Scrape = Callable[..., dict[str, dict[tuple[str, ...], float]]]

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
UUID = "GPU-00000000-1111-2222-3333-444444444444"
TOTAL = 15109 << 20
UNITS = ("_bytes", "_seconds", "_ratio")
HOSTILE = 'a"} 1\ncgpu_gpu_memory_bytes 7\\\udcff' + "x" * 1000


def test_the_documentation_has_the_very_table_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(cgpu_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE
    )
    documented = [
        (name, kind, tuple(re.findall(r"\w+", labels)), text) for name, kind, labels, text in rows
    ]
    assert documented == [(each.name, each.kind, each.labels, each.help) for each in METRICS]
    named = re.findall(r"^\| `(DCGM_\w+)` ", DOCUMENT.read_text(), re.MULTILINE)
    assert named == [each.name for each in DCGM]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Any) -> None:
    assert re.fullmatch(r"cgpu(_[a-z]+)+", metric.name)
    base = metric.name.removesuffix("_total")
    assert not re.search(r"_(ms|us|ns|mib|kb|mb|percent|ppm|milliseconds)(_|$)", base)
    for unit in UNITS:
        assert unit not in base or base.endswith(unit), "the unit comes last"


def _key(sample: Sample) -> tuple[str, ...]:
    """The values of the labels, in the order of the labels' names."""
    return tuple(value for _, value in sorted(sample.labels.items()))


@pytest.mark.parametrize(
    ("given", "configured", "state", "address"),
    [
        (None, None, "/run/cgpu", None),
        (None, "a:1", "/run/cgpu", "a:1"),
        ("b:2", "a:1", "/run/cgpu", "b:2"),
        (None, "a:1", "/run/user/7/cgpu", None),
        ("b:2", "a:1", "/run/user/7/cgpu", "b:2"),
    ],
)
def test_the_configured_port_is_for_the_nodes_own_server(
    given: str | None, configured: str | None, state: str, address: str | None
) -> None:
    assert metrics_address(given, configured, state) == address


class World:
    """A container with a directory, on a node with one GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused, self.used = 0, 100
        self.id = "a"
        self.kind: Literal["container", "claim"] = "container"
        self.name, self.pods = "", tuple[str, ...]()
        self.exclusive: dict[str, Exclusive] = {}
        self.config, self.cap, self.is_alone = Config(), 1000, False
        self.is_read = True  # what the driver reports of a GPU's memory
        gpu = NodeGpu(0, UUID, "Tesla T4", TOTAL, 0, ())
        self.node: Node | None = Node("535.0", "/nowhere", {}, {}, (gpu,), ())

    def use(self, record: Record) -> Use:
        compute = Compute(50.0, 25.5, 3_500_000_000, True, 10.0, 7, 1_500_000_000, 20_000_000)  # noqa: FBT003
        compute = compute._replace(estimated_percent=12.0, estimated_ns=1_000_000_000)
        holders = (Holding(0, 60, 1), Holding(0, 40, 2))
        gpu = GpuUse(0, UUID, self.cap, self.used, holders, compute, self.refused)
        gpu = gpu._replace(outside_bytes=30, mark=marks.LOCKS, promised_bytes=1000)
        terms = record.weight, record.high_priority, record.policy
        whose = (gpu,), record.directory, self.pods
        return Use(record.id, self.kind, self.name, ("x",), *terms, *whose)

    def state(self) -> ServerState:
        gpus = (GpuShare(0, UUID, 1000),)
        owner = Owner(1, 1, None)
        record = Record(self.id, "container", owner, gpus, 3, True, 6, ("x",), str(self.folder))  # noqa: FBT003
        figures = {UUID: Figures(10, 5, 2_000_000_000, 1, 0)}
        return cast(
            "ServerState",
            SimpleNamespace(
                records=() if self.exclusive or self.is_alone else (record,),
                find_node=lambda: self.node,
                rules_of=lambda _: Rules(),
                arbiters=SimpleNamespace(read_figures=lambda: figures),
                refreshed_at=0.0,
                exclusive=self.exclusive,
                config=self.config,
            ),
        )

    def audit(self) -> auditor.Audit:
        tenant = str(self.folder), 0
        last = Snapshot({UUID: True}, {UUID: 5}, {tenant: 2}, {UUID: 75}, {})
        last = last._replace(used_bytes={UUID: 5000} if self.is_read else {})
        audit = auditor.Audit(self.state())
        audit.last = last
        audit.utilisation = cast(
            "Utilisation", SimpleNamespace(add_estimates=list, busy_ns={UUID: 2_500_000_000})
        )
        return audit


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "a")
    world.folder.mkdir()
    monkeypatch.setattr(auditor, "use_of", world.use)
    return world


@pytest.fixture
def scrape(world: World) -> Scrape:
    """What a Prometheus reads: for each name the values by the values of the labels."""
    collector: list[exporter.Collector] = []

    def read(*, again: bool = False) -> dict[str, dict[tuple[str, ...], float]]:
        if again or not collector:
            collector[:] = [exporter.Collector(world.state(), world.audit())]
        registry = CollectorRegistry()
        registry.register(collector[0])
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[_key(sample)] = sample.value
        return found

    return read


def test_every_metric_has_a_value_in_base_units(scrape: Scrape, world: World) -> None:
    world.refused = 4
    found = scrape()
    assert found.keys() == {metric.name for metric in METRICS}
    key = ("a", "0", "a", "", "", UUID)
    assert found["cgpu_container_memory_refused_total"] == {key: 4}
    assert found["cgpu_container_compute_seconds_total"] == {key: 4.5}
    assert found["cgpu_container_compute_estimated_ratio"] == {key: 0.12}
    assert found["cgpu_gpu_utilisation_ratio"] == {("0", UUID): 0.75}
    assert found["cgpu_gpu_busy_seconds_total"] == {("0", UUID): 2.5}
    assert found["cgpu_container_compute_throttled_seconds_total"] == {key: 1.5}
    assert found["cgpu_container_compute_waits_total"] == {key: 7}
    assert found["cgpu_container_compute_limit_ratio"] == {key: 0.5}
    assert found["cgpu_container_compute_used_ratio"] == {key: 0.255}
    assert found["cgpu_container_compute_share_ratio"] == {key: 0.1}
    assert found["cgpu_container_compute_fallback"] == {key: 0}
    assert found["cgpu_container_arbiter_heartbeat_age_seconds"] == {key: 0.02}
    assert found["cgpu_container_memory_outside_bytes"] == {key: 30}
    assert found["cgpu_container_memory_bypasses_total"] == {key: 2}
    assert found["cgpu_container_marked"] == {("a", "a", marks.LOCKS, "", ""): 1}
    assert found["cgpu_container_ledger_readable"] == {key: 1}
    assert found["cgpu_gpu_memory_foreign_bytes"] == {("0", UUID): 5}
    assert found["cgpu_gpu_audit_readable"] == {("0", UUID): 1}
    assert found["cgpu_container_processes"] == {key: 2}
    assert found["cgpu_gpu_arbiter_cpu_seconds_total"] == {("0", UUID): 2}
    assert found["cgpu_gpu_priority_ratio"] == {("0", UUID): 0.8}
    assert found["cgpu_gpu_info"] == {("535.0", "0", "Tesla T4", UUID): 1}


def test_a_pods_container_has_its_names_and_keeps_them_to_its_end(
    scrape: Scrape, world: World
) -> None:
    """K8S-8: its id stays beside them, because two of one name can be there for a moment."""
    file = world.folder / "pod"
    file.write_bytes(pack_pod(PodContainer("uid", "ml", "train", "main")))
    key = ("main", "0", "a", "ml", "train", UUID)
    assert scrape()["cgpu_container_memory_used_bytes"] == {key: world.used}
    assert scrape()["cgpu_container_weight"] == {("main", "a", "ml", "train"): 3}
    info = ("main", "a", "container", "", "ml", "train")
    assert scrape()["cgpu_container_info"] == {info: 1}
    file.unlink()
    assert scrape()["cgpu_container_memory_limit_bytes"] == {key: 1000}


def test_dra_7_a_claim_has_the_names_of_its_pods_and_its_own(scrape: Scrape, world: World) -> None:
    """DRA-7: those that have it now, or had it last; the claim's UID stays beside them."""
    world.kind, world.name = "claim", "ml/part"
    assert scrape()["cgpu_container_weight"] == {("", "a", "ml", ""): 3}
    world.pods = ("ml/one/main", "ml/one/side", "ml/two/main")
    found = scrape()
    key = ("main,side", "0", "a", "ml", "one,two", UUID)
    assert found["cgpu_container_memory_used_bytes"] == {key: world.used}
    info = ("main,side", "a", "claim", "ml/part", "ml", "one,two")
    assert found["cgpu_container_info"] == {info: 1}
    world.pods = ("ml/two/main",)
    assert scrape()["cgpu_container_weight"] == {("main", "a", "ml", "two"): 3}
    world.pods = ()
    assert scrape()["cgpu_container_weight"] == {("main", "a", "ml", "two"): 3}, "as it ends"


def test_a_pod_with_a_whole_gpu_is_one_of_its_containers(scrape: Scrape, world: World) -> None:
    """K8S-8: with what the driver reports, and nothing that nobody measures."""
    world.exclusive = {UUID: Exclusive("ml", "train", "main", (UUID,))}
    found = scrape()
    own = {
        "cgpu_container_memory_limit_bytes": TOTAL,
        "cgpu_container_memory_used_bytes": 5000,
        "cgpu_container_compute_limit_ratio": 1,
        "cgpu_container_compute_estimated_ratio": 0.75,
    }
    key = ("main", "0", "ml/train/main", "ml", "train", UUID)
    about = {name: its for name, its in found.items() if name.startswith("cgpu_container")}
    info = ("main", "ml/train/main", "exclusive", "ml/train/main", "ml", "train")
    assert about.pop("cgpu_container_info") == {info: 1}
    assert about == {name: {key: value} for name, value in own.items()}
    assert found["cgpu_gpu_memory_promised_bytes"] == {("0", UUID): TOTAL}
    assert found["cgpu_gpu_memory_used_bytes"] == {("0", UUID): 5000}
    assert found["cgpu_gpu_containers"] == {("0", UUID): 1}


def test_without_the_drivers_figures_a_pod_with_a_whole_gpu_is_named_only(
    scrape: Scrape, world: World
) -> None:
    world.exclusive, world.is_read = {UUID: Exclusive("ml", "train", "main", (UUID,))}, False
    assert [name for name in scrape() if "container_" in name] == ["cgpu_container_info"]


USED, FREE, BUSY = (f"DCGM_FI_DEV_{name}" for name in ("FB_USED", "FB_FREE", "GPU_UTIL"))


def test_with_the_names_of_dcgm_a_pods_container_has_its_own_figures(
    scrape: Scrape, world: World
) -> None:
    """K8S-8: in MiB and percent; on a node of a cluster, by the node's name in it."""
    assert USED not in scrape()
    world.config = Config(dcgm_names=True, kubernetes=Kubernetes("gpu-a", "cgpu"))
    world.used, world.cap = 3 << 20, 8 << 20
    (world.folder / "pod").write_bytes(pack_pod(PodContainer("uid", "ml", "train", "main")))
    found = scrape(again=True)
    key = ("gpu-a", UUID, "main", "0", "Tesla T4", "ml", "train")
    assert (found[USED], found[FREE], found[BUSY]) == ({key: 3}, {key: 5}, {key: 25.5})
    world.node = None
    assert USED not in scrape(again=True)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_gpu_without_containers_has_the_drivers_figures_under_the_names_of_dcgm(
    scrape: Scrape, world: World, *, is_read: bool
) -> None:
    world.config, world.is_alone, world.is_read = Config(dcgm_names=True), True, is_read
    found = scrape()
    key = (os.uname().nodename, UUID, "", "0", "Tesla T4", "", "")
    used = 5000 / (1 << 20)
    assert found.get(USED, {}) == ({key: used} if is_read else {})
    assert found.get(FREE, {}) == ({key: (TOTAL >> 20) - used} if is_read else {})
    assert found[BUSY] == {key: 75}


def test_hostile_ids_and_figures_break_nothing(scrape: Scrape, world: World) -> None:
    """REL-5."""
    world.id, world.used, world.refused = HOSTILE, 2**64 - 1, 2**64 - 1
    found = scrape()
    (key,) = found["cgpu_container_memory_used_bytes"]
    container, gpu, _, namespace, pod, uuid = key
    assert (gpu, namespace, pod, uuid) == ("0", "", "", UUID)
    assert container.startswith('a"} 1\ncgpu_gpu_memory_bytes 7\\')
    assert len(container) < 300
    assert found["cgpu_container_memory_used_bytes"][key] == TOTAL
    assert found["cgpu_gpu_memory_used_bytes"] == {("0", UUID): TOTAL}
    assert found["cgpu_gpu_memory_bytes"] == {("0", UUID): TOTAL}


def test_a_counter_never_goes_back_but_for_another_container(scrape: Scrape, world: World) -> None:
    """REL-5: whatever it writes into its ledger."""

    def refused() -> float:
        return scrape()["cgpu_container_memory_refused_total"]["a", "0", "a", "", "", UUID]

    world.refused = 9
    assert refused() == 9
    world.refused = 2
    assert refused() == 9
    world.folder.rename(world.folder.with_name("old"))
    world.folder.mkdir()
    assert refused() == 2


def test_without_a_driver_there_are_the_containers_figures(
    scrape: Scrape,
    world: World,
) -> None:
    world.node = None
    found = scrape()
    assert found["cgpu_driver_readable"] == {(): 0}
    assert found["cgpu_container_memory_used_bytes"] == {("a", "0", "a", "", "", UUID): world.used}
    assert "cgpu_gpu_memory_bytes" not in found
