"""A real Prometheus scrapes a node at work; alerts and dashboard fit (CLI-3, CLI-5)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from cgpu_cli.demo import tenant
from cgpu_server.metrics.table import METRICS
from cgpu_sim import make_driver_dir
from cgpu_sim.machine import TESLA_T4
from lab.machine.servers import end_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
DEPLOY = HERE.parents[2] / "deploy" / "prometheus"
ALERTS = DEPLOY / "cgpu-alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana-cgpu.json").read_text())
NAMES = {metric.name for metric in METRICS}
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
VARIABLES = {
    "$__rate_interval": "10s",
    "$__range": "1h",
    "$instance": ".*",
    "$gpu": ".*",
    "$container": ".*",
}
[CHOICE] = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "container"]
ESTIMATE = "cgpu_container_compute_estimated_ratio"  # there where nobody measures
MIB = 1 << 20


def promtool(*words: str | Path) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_configuration_and_alerts() -> None:
    promtool("check", "rules", ALERTS)
    promtool("check", "config", "--lint-fatal", DEPLOY / "prometheus.yml")


def test_every_alert_fires_when_it_is_to_and_not_on_a_healthy_node() -> None:
    promtool("test", "rules", HERE / "alerts.yml")
    cases = (HERE / "alerts.yml").read_text()
    for name in re.findall(r"- alert: (\w+)", ALERTS.read_text()):
        assert cases.count(f"alertname: {name}}}") == 1, "on a healthy node"
        assert cases.count(f'alertname="{name}"') == 1, "on a sick one"


@pytest.mark.parametrize("text", [ALERTS.read_text(), *(query for _, query in QUERIES)])
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(text: str) -> None:
    asked = set(re.findall(r"\bcgpu_\w+", text))
    assert asked <= NAMES
    assert asked or "up{" in text


def test_the_dashboards_panels_have_room_and_a_place_each() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_names_only_variables_that_it_has() -> None:
    """Grafana shows an empty panel for any other one."""
    own = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(DASHBOARD)))  # $1 is of label_replace
    assert used - {"__all", "__rate_interval", "__range"} == own


LONG = "3f4a5b6c7d8e" + "0" * 52
SHOWN = [
    ("web", LONG, "web 3f4a5b6c7d8e"),
    ("default/my pod/main", LONG, "default/my pod/main 3f4a5b6c7d8e"),
    ("", LONG, "3f4a5b6c7d8e"),
    ("python", "run-13a63079", "python run-13a63079"),
    ("a-name-longer-than-ids", "mine", "a-name-longer-than-ids mine"),
    ("", "mine", "mine"),
]


def filled_in(query: str) -> str:
    """As Grafana asks it, with everything chosen."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return query


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
    for name, container, shown in SHOWN:
        labels = f'instance="n", container="{container}"'
        info = f'cgpu_container_info{{{labels}, kind="container", name="{name}"}}'
        used = f'cgpu_container_memory_used_bytes{{{labels}, gpu="0"}}'
        outcome = f'{{{labels}, gpu="0", shown="{shown}"}}'
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
    for name, container, shown in SHOWN:
        own = {"instance": "n", "container": container, "kind": "container", "name": name}
        labels = ", ".join(f'{label}="{value}"' for label, value in own.items())
        limit = (
            f'cgpu_container_memory_limit_bytes{{instance="n", container="{container}", gpu="0"}}'
        )
        elsewhere = 'cgpu_container_info{instance="n", container="c9", name="of no GPU chosen"}'
        series = {f"cgpu_container_info{{{labels}}}": "1 1", limit: "7 7", elsewhere: "1 1"}
        outcome = f'cgpu_container_info{{{labels}, shown="{shown}"}}'
        groups.append(case(series, filled_in(query[1]), outcome, 1, "30m"))
        assert chosen_from([{**own, "shown": shown}]) == {container: shown}
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"tests": groups}))
    promtool("test", "rules", cases)


class Prometheus:
    """One that scrapes ``target`` every second."""

    def __init__(self, folder: Path, target: str) -> None:
        self.address = free_address()
        shutil.copy(ALERTS, folder)
        text = (DEPLOY / "prometheus.yml").read_text()
        text = text.replace("127.0.0.1:9477", target).replace("15s", "1s")
        (folder / "prometheus.yml").write_text(text)
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        url = f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=20) as answer:
            output = json.load(answer)
        assert output["status"] == "success", output
        return output["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of what an expression gives now."""
        found = self.ask("query", query=filled_in(expression))["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def answers(self, expression: str) -> bool:
        """Whether there is anything to see yet."""
        try:
            return bool(self.query(expression))
        except (URLError, ConnectionError):  # it starts
            return False


def free_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as end:
        return f"127.0.0.1:{end.getsockname()[1]}"


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.1)


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


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    folder.mkdir()
    made = Prometheus(folder, target)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


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
        prometheus(tmp_path / "prometheus", node.metrics) as server,
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
