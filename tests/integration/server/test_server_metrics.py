"""cgpud's metrics over HTTP (CLI-3, REL-5)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import cgpu_native
from lab.driver.attached import AttachedLedger
from lab.machine.as_service import as_service
from lab.worlds.server import MIB, World, environment, wait_until

pytestmark = pytest.mark.integration

ANY = "127.0.0.1:0"


def scrape(address: str) -> dict[str, dict[str, float]]:
    """For each metric, the values by container (or nothing)."""
    with urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("container", "")] = sample.value
    return found


def serve(world: World, address: str = ANY, *, service: bool = False) -> str:
    """Start a server with metrics; where they are."""
    log = world.state.parent / "log"
    world.start("--metrics", address, "--log", str(log), service=service)
    return logged(log, r"metrics_served address=(\S+)")


def logged(log: Path, pattern: str) -> str:
    """What stands in the log, as soon as it does."""
    wait_until(lambda: re.search(pattern, log.read_text()), pattern)
    found = re.search(pattern, log.read_text())
    assert found
    return found[1] if found.groups() else found[0]


def test_a_container_is_measured_from_its_ledger_and_its_arbiter(world: World) -> None:
    directory = world.admit("a", weight=3)
    address = serve(world)
    with AttachedLedger.attach(directory / "ledger") as ledger:
        ledger.charge(0, MIB, MIB // 2)
        with pytest.raises(cgpu_native.NativeError, match="does not fit under the cap"):
            ledger.charge(0, MIB, MIB)
        wait_until(lambda: scrape(address)["cgpu_container_compute_fallback"]["a"] == 0, "signs")
        found = scrape(address)
    assert found["cgpu_container_memory_limit_bytes"]["a"] == MIB
    assert found["cgpu_container_memory_used_bytes"]["a"] == MIB // 2
    assert found["cgpu_container_memory_refused_total"]["a"] == 1
    assert found["cgpu_container_weight"]["a"] == 3
    assert found["cgpu_container_arbiter_heartbeat_age_seconds"]["a"] < 1
    assert found["cgpu_look_age_seconds"][""] < 20
    world.registry.remove("a")
    wait_until(lambda: "cgpu_container_weight" not in scrape(address), "it is gone")


def test_a_ruined_ledger_is_told_and_harms_no_other(world: World) -> None:
    """REL-5."""
    ruined = world.admit("a")
    world.admit("b")
    address = serve(world)
    os.truncate(ruined / "ledger", 100)
    found = scrape(address)
    assert found["cgpu_container_ledger_readable"] == {"a": 0, "b": 1}
    assert found["cgpu_container_memory_limit_bytes"] == {"a": MIB, "b": MIB}


def test_clients_that_say_nothing_or_little_stop_nobody(world: World) -> None:
    """REL-5, REL-8: neither the server nor another client."""
    address = serve(world)
    host, _, port = address.rpartition(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    for _ in range(3):
        for end in slow:
            with suppress(OSError):  # it was sent away
                end.send(b"G")
        assert scrape(address)["cgpu_build_info"]
    slow[0].settimeout(5)  # half of the patience that there is with those who are let in
    assert slow[0].recv(1) == b"", "the oldest ones were sent away"
    assert world.pid()
    for end in slow:
        end.close()


def test_a_port_that_is_taken_is_one_line_and_used_when_it_is_free(world: World) -> None:
    log = world.state.parent / "log"
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        world.start("--metrics", address, "--log", str(log))
        logged(log, "metrics_not_served")
        world.ask({"request": "status"})
        world.ask({"request": "status"})
        assert log.read_text().count("metrics_not_served") == 1
    logged(log, "metrics_served")
    assert scrape(address)


@pytest.mark.parametrize("address", ["nowhere:80", "127.0.0.1:high", "9477", "127.0.0.1:99999"])
def test_an_address_that_makes_no_sense_is_one_line(world: World, address: str) -> None:
    log = world.state.parent / "log"
    world.start("--metrics", address, "--log", str(log))
    logged(log, "metrics_not_served")
    assert world.pid()


def test_the_service_serves_on_the_socket_that_systemd_made(world: World) -> None:
    """REL-2: it makes none of its own, for it has no network."""
    start = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3);"
        "os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as made:
        host, port = made.getsockname()
        command = as_service(world.command())
        subprocess.Popen(
            [sys.executable, "-c", start, str(made.fileno()), *command],
            env={**environment(), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "metrics"},
            pass_fds=[made.fileno()],
        )
    wait_until(lambda: world.pid() is not None, "it serves")
    assert scrape(f"{host}:{port}")["cgpu_build_info"]


def test_containers_come_and_go_while_many_scrape(world: World) -> None:
    address = serve(world)
    stop = threading.Event()
    failures: list[Exception] = []

    def scrape_on() -> None:
        while not stop.is_set():
            try:
                scrape(address)
            except Exception as error:  # noqa: BLE001, PERF203 (told below)
                failures.append(error)

    scrapers = [threading.Thread(target=scrape_on) for _ in range(3)]
    for each in scrapers:
        each.start()
    for i in range(15):
        world.admit(f"c{i % 3}")
        world.ask({"request": "status"})
        world.registry.remove(f"c{i % 3}")
    stop.set()
    for each in scrapers:
        each.join()
    assert failures == []
