"""A real Prometheus scrapes a node at work; alerts and dashboard fit (CLI-3, CLI-5)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_cli.demo import tenant
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.metrics import Metrics
from cgpu_server.metrics.table import METRICS
from cgpu_sim import make_driver_dir
from cgpu_sim.machine import TESLA_T4
from lab.machine.servers import end_servers
from lab.products.prometheus import (
    ALERTS,
    DEPLOY,
    Prometheus,
    filled_in,
    free_address,
    prometheus,
    promtool,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
DASHBOARDS = {
    name: json.loads((DEPLOY / f"{name}.json").read_text())
    for name in ("grafana-cgpu", "grafana-cgpu-cluster")
}
DASHBOARD = DASHBOARDS["grafana-cgpu"]
NAMES = {metric.name for metric in METRICS}
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
[CHOICE] = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "container"]
ESTIMATE = "cgpu_container_compute_estimated_ratio"  # there where nobody measures
MIB = 1 << 20


def test_prometheus_accepts_configuration_and_alerts() -> None:
    promtool("check", "rules", ALERTS)
    promtool("check", "config", "--lint-fatal", DEPLOY / "prometheus.yml")


def test_every_alert_fires_when_it_is_to_and_not_on_a_healthy_node() -> None:
    promtool("test", "rules", HERE / "alerts.yml")
    cases = (HERE / "alerts.yml").read_text()
    for name in re.findall(r"- alert: (\w+)", ALERTS.read_text()):
        assert cases.count(f"alertname: {name}}}") == 1, "on a healthy node"
        assert cases.count(f'alertname="{name}"') == 1, "on a sick one"


def asked_for(dashboard: Any) -> list[str]:
    """What its panels ask Prometheus."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def extenders() -> set[str]:
    """The names of the extender's samples."""
    families = Metrics(SchedulerCache(), dict, lambda: "").registry.collect()
    suffixes = {"counter": ("_total",), "histogram": ("_bucket",)}
    return {f.name + end for f in families for end in suffixes.get(f.type, ("",))}


@pytest.mark.parametrize(
    "text", [ALERTS.read_text(), *(q for each in DASHBOARDS.values() for q in asked_for(each))]
)
def test_alerts_and_dashboards_ask_for_metrics_that_there_are(text: str) -> None:
    asked = set(re.findall(r"\bcgpu_\w+", text))
    assert asked <= NAMES | extenders()
    assert asked or "up{" in text


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboards_panels_have_room_and_a_place_each(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_names_only_variables_that_it_has(name: str) -> None:
    """Grafana shows an empty panel for any other one."""
    own = {variable["name"] for variable in DASHBOARDS[name]["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(DASHBOARDS[name])))  # $1: label_replace
    assert used - {"__all", "__rate_interval", "__range"} == own


LONG = "3f4a5b6c7d8e" + "0" * 52
POD = {"namespace": "default", "pod": "my pod", "container": "main"}
SHOWN = [
    ("web", LONG, {}, "web 3f4a5b6c7d8e"),
    ("default/my pod/main", LONG, POD, "default/my pod/main 3f4a5b6c7d8e"),
    ("", LONG, {}, "3f4a5b6c7d8e"),
    ("python", "run-13a63079", {}, "python run-13a63079"),
    ("a-name-longer-than-ids", "mine", {}, "a-name-longer-than-ids mine"),
    ("", "mine", {}, "mine"),
]


def labelled(**labels: str) -> str:
    """Labels as a series has them."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def case(series: dict[str, str], query: str, outcome: str, value: int, at: str) -> dict[str, Any]:
    """What promtool shall find for a query, of series with their values."""
    expected = {"labels": outcome, "value": value}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": its} for name, its in series.items()],
        "promql_expr_test": [{"expr": query, "exp_samples": [expected], "eval_time": at}],
    }


def test_legends_have_a_containers_name_and_the_beginning_of_its_id(tmp_path: Path) -> None:
    """Sessions of one program have one name, and some containers have none."""
    [query] = [query for title, query in QUERIES if title == "Memory by container"]
    groups = []
    for name, id_, pod, shown in SHOWN:
        own = {"instance": "n", "id": id_, "container": id_, **pod}
        info = "cgpu_container_info" + labelled(**own, kind="container", name=name)
        used = "cgpu_container_memory_used_bytes" + labelled(**own, gpu="0")
        outcome = labelled(**own, gpu="0", shown=shown)
        groups.append(case({info: "1", used: "7"}, filled_in(query), outcome, 7, "0m"))
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"tests": groups}))
    promtool("test", "rules", cases)


def chosen_from(answers: list[dict[str, str]]) -> dict[str, str]:
    """What Grafana lists to choose a container from: its value, and what is shown of it."""
    pattern = CHOICE["regex"].removeprefix("/").removesuffix("/g").replace("(?<", "(?P<")
    listed = {}
    for labels in answers:
        text = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        groups = [found.groupdict() for found in re.finditer(pattern, f"{{{text}}} 1 0")]
        value, shown = (next(g[k] for g in groups if g[k]) for k in ("value", "text"))
        listed[value] = shown
    return listed


def test_a_container_is_chosen_by_its_name_also_after_its_end(tmp_path: Path) -> None:
    """The name stands for the id, which the panels ask for."""
    query = re.fullmatch(r"query_result\((.+)\)", CHOICE["query"]["query"])
    assert query
    groups = []
    for name, id_, pod, shown in SHOWN:
        own = {"instance": "n", "id": id_, "container": id_, **pod}
        about = {**own, "kind": "container", "name": name}
        limit = "cgpu_container_memory_limit_bytes" + labelled(**own, gpu="0")
        elsewhere = 'cgpu_container_info{instance="n", id="c9", name="of no GPU chosen"}'
        series = {"cgpu_container_info" + labelled(**about): "1 1", limit: "7 7", elsewhere: "1 1"}
        outcome = "cgpu_container_info" + labelled(**about, shown=shown)
        groups.append(case(series, filled_in(query[1]), outcome, 1, "30m"))
        assert chosen_from([{**about, "shown": shown}]) == {id_: shown}
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"tests": groups}))
    promtool("test", "rules", cases)


class Demonstration:
    """Programs on a simulated GPU, and their server with metrics."""

    def __init__(self, folder: Path) -> None:
        self.driver = make_driver_dir(folder / "driver", [TESLA_T4])
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self.flags = ["--driver-dir", str(self.driver), "--state-dir", str(self.state)]
        self.metrics = free_address()
        module = [sys.executable, "-m", "cgpu_server.main", "--metrics", self.metrics]
        self.server = subprocess.Popen([*module, *self.flags])
        self.programs: list[subprocess.Popen[str]] = []

    def start(self, *orders: str) -> None:
        """A program with 3 of 15 GiB that does what the test asks."""
        words = [sys.executable, "-m", "cgpu_cli.run", *self.flags, "--mem", "3/15", "--"]
        program = subprocess.Popen(
            [*words, sys.executable, "-I", tenant.__file__, ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        assert program.stdin
        assert program.stdout
        for order in orders:
            program.stdin.write(f"{order}\n")
            program.stdin.flush()
            while program.stdout.readline().strip():
                pass


@contextmanager
def demonstration(folder: Path) -> Iterator[Demonstration]:
    made = Demonstration(folder)
    try:
        yield made
    finally:
        for process in (*made.programs, made.server):
            process.kill()
            process.wait()
        end_servers(folder)


def _check_dashboard(server: Prometheus) -> None:
    """Legends name labels of what they stand beside, variables have the values of the node."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(named <= labels.keys() for labels, _ in server.query(target["expr"])), panel
    held = next(query for title, query in QUERIES if title == "Memory by container")
    infos = [labels for labels, _ in server.query("cgpu_container_info")]
    known = {each["container"]: f"{each['name']} {each['container']}" for each in infos}
    assert {labels["shown"] for labels, _ in server.query(held)} == {*known.values()}
    values = {}
    for variable in DASHBOARD["templating"]["list"][1:-1]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found
        values[variable["name"]] = {labels[found[2]] for labels, _ in server.query(found[1])}
    assert (len(values["instance"]), values["gpu"]) == (1, {"0"})
    query = CHOICE["query"]["query"].removeprefix("query_result(").removesuffix(")")
    assert len(known) == 2
    assert chosen_from([labels for labels, _ in server.query(query)]) == known


def test_prometheus_sees_what_programs_hold_and_wait_for(tmp_path: Path) -> None:
    """CLI-3: every query but for estimates has an answer while they run, and `up` when they end."""
    with (
        demonstration(tmp_path) as node,
        prometheus(
            tmp_path / "prometheus",
            "prometheus.yml",
            {"127.0.0.1:9477": node.metrics, "15s": "1s"},
        ) as server,
    ):
        node.start("alloc 1000", "alloc 5000", "compute 500")
        node.start("alloc 500", "compute 500")
        throttled = "rate(cgpu_container_compute_throttled_seconds_total[10s]) > 0"
        wait_until(lambda: server.answers("up == 1"), "it scrapes")
        wait_until(lambda: len(server.query(throttled)) == len(node.programs), "both wait")
        for title, query in QUERIES:
            if ESTIMATE not in query:
                wait_until(partial(server.answers, query), f"{title}: {query}")
        _check_dashboard(server)
        scraped = set(server.ask("label/__name__/values"))
        rare = {"cgpu_container_marked", ESTIMATE}
        assert {name for name in scraped if name.startswith("cgpu_")} == NAMES - rare
        refused = server.query("cgpu_container_memory_refused_total > 0")
        assert [value for _, value in refused] == [1]
        held = server.query("cgpu_container_memory_used_bytes")
        assert {labels["gpu"] for labels, _ in held} == {"0"}
        assert sum(value for _, value in held) >= 1500 * MIB
        groups = server.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
        node.server.kill()
        wait_until(lambda: server.query("up == 0"), "it is seen to be down")
