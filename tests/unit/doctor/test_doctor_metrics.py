"""What ``cgpu doctor`` says of the address of the metrics (CLI-4)."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import metrics
from cgpu_doctor.finding import Finding, Ground
from cgpu_install.machine import BOOTED, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

OURS, OTHERS = b'cgpu_build_info{version="1"} 1.0\n', b"<html>hello</html>\n"
NOT_HERE = "192.0.2.1:9477"  # of an example network


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    (tmp_path / "run/cgpu").mkdir(parents=True, mode=0o700)
    (tmp_path / "etc/cgpu").mkdir(parents=True)
    (tmp_path / BOOTED[1:]).mkdir(parents=True)
    return Ground(Machine(str(tmp_path)), str(tmp_path / "run/cgpu"), None)


def configure(ground: Ground, address: str) -> None:
    Path(ground.machine.resolve_path("/etc/cgpu/config.toml")).write_text(
        f'[server]\nmetrics = "{address}"\n'
    )


def only(ground: Ground) -> Finding:
    (found,) = metrics.check_metrics(ground)
    return found


@pytest.fixture
def output() -> list[bytes]:
    return [OURS]


@pytest.fixture
def port(output: list[bytes]) -> Iterator[int]:
    """Of a program that answers what is in ``said``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(output[0])

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_nothing_is_wrong_where_nothing_says_where_metrics_are(ground: Ground) -> None:
    assert only(ground).level == "ok"


@pytest.mark.parametrize(
    ("content", "address", "level", "what"),
    [
        (OURS, "127.0.0.1", "ok", "metrics are served at"),
        (OURS, "0.0.0.0", "note", "whoever reaches it sees ids and names"),
        (OTHERS, "127.0.0.1", "warning", "another program serves"),
    ],
)
def test_who_serves_the_address_is_told(
    monkeypatch: pytest.MonkeyPatch,
    ground: Ground,
    port: int,
    output: list[bytes],
    content: bytes,
    address: str,
    level: str,
    what: str,
) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 60)
    output[0] = content
    configure(ground, f"{address}:{port}")
    found = only(ground)
    assert (found.level, found.value) == (level, f"{address}:{port}")
    assert what in found.what
    assert bool(found.mend) == (level == "warning")


@pytest.mark.parametrize("address", ["nowhere:80", "127.0.0.1:99999", "127.0.0.1:0"])
def test_an_address_that_makes_no_sense_is_an_error(ground: Ground, address: str) -> None:
    configure(ground, address)
    found = only(ground)
    assert (found.level, found.value) == ("error", address)
    assert "expected an address in digits and a port from 1 to 65535" in found.what


def test_an_address_of_another_machine_is_an_error(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> bytes:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(metrics, "_fetch_metrics", unreachable)
    configure(ground, NOT_HERE)
    found = only(ground)
    assert (found.level, found.value) == ("error", NOT_HERE)
    assert "is no address of this machine" in found.what


def refused(*_: object) -> bytes:
    raise ConnectionRefusedError


def test_a_server_that_serves_none_is_told_from_one_that_is_to_come(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_fetch_metrics", refused)
    configure(ground, "127.0.0.1:9477")
    assert only(ground).level == "ok"
    monkeypatch.setattr(Ground, "is_served", lambda _: True)
    found = only(ground)
    assert found.level == "warning"
    assert "cgpu install metrics --now" in found.mend


def install_socket(ground: Ground) -> None:
    units = Path(ground.machine.resolve_path("/etc/systemd/system"))
    (units / "sockets.target.wants").mkdir(parents=True)
    (units / "sockets.target.wants/cgpud-metrics.socket").symlink_to("../cgpud-metrics.socket")
    (units / "cgpud-metrics.socket").write_text("[Socket]\nListenStream=127.0.0.1:9999\n")


def test_without_systemd_its_socket_serves_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_fetch_metrics", refused)
    monkeypatch.setattr(Ground, "is_served", lambda _: True)
    Path(ground.machine.resolve_path(BOOTED)).rmdir()
    install_socket(ground)
    found = only(ground)
    assert (found.level, found.value) == ("warning", "cgpud-metrics.socket")
    assert found.mend == "name an address: [server] metrics in /etc/cgpu/config.toml"
    configure(ground, "127.0.0.1:9477")
    found = only(ground)
    assert (found.level, found.value) == ("warning", "127.0.0.1:9477")
    assert found.mend == f"see {ground.state_dir}/cgpud.log"


def test_the_socket_of_systemd_goes_before_the_configuration(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_fetch_metrics", refused)
    install_socket(ground)
    configure(ground, "127.0.0.1:9477")
    found = only(ground)
    assert (found.level, found.value) == ("warning", "127.0.0.1:9999")
    assert found.mend == "systemctl restart cgpud-metrics.socket cgpud.service"


def test_another_state_directorys_server_has_no_address(tmp_path: Path, ground: Ground) -> None:
    configure(ground, "nowhere:80")
    assert list(metrics.check_metrics(ground._replace(state_dir=str(tmp_path)))) == []
