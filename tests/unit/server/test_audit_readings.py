"""What several readings of one audit charge to a container for memory outside its ledger."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cgpu_server.audit import auditor
from cgpu_server.audit.verdict import CALM, Discrepancy, Verdict

if TYPE_CHECKING:
    from cgpu_server.state.server_state import ServerState

pytestmark = pytest.mark.unit
KEY = ("/containers/one", 0)


def verdict(outside: int) -> Verdict:
    return Verdict(outside, (Discrepancy("drift", (1,), outside),)) if outside else CALM


@pytest.mark.parametrize(
    ("charged", "found", "then"),
    [
        (0, [500, 500, 500], 0),  # the audit before found nothing
        (1000, [500, 1000, 1000], 1000),  # one missed what was allocated at that moment
        (1000, [0, 1000, 1000], 1000),
        (1000, [1000, 0, 1000], 1000),
        (1000, [1000, 1500, 1000], 1000),
        (1000, [400, 600, 500], 600),
        (1000, [0, 0, 0], 0),
    ],
)
def test_a_charge_falls_to_the_most_that_any_reading_found(
    monkeypatch: pytest.MonkeyPatch, charged: int, found: list[int], then: int
) -> None:
    gpu = SimpleNamespace(outside_bytes=charged, uuid="GPU-0")
    record = SimpleNamespace(directory=KEY[0], id="one", gpus=[])
    state = SimpleNamespace(records=[record])
    audit = auditor.Audit(cast("ServerState", state))
    readings = iter(found)
    written: list[int] = []

    def compare(*_: Any) -> dict[tuple[str, int], Verdict]:
        return {KEY: verdict(next(readings))}

    def charge(_key: tuple[str, int], _gpu: Any, outside: int) -> bool:
        written.append(outside)
        return True

    monkeypatch.setattr(auditor, "_READINGS", len(found))
    monkeypatch.setattr(auditor, "_PAUSE_SECONDS", (0, 0))
    monkeypatch.setattr(auditor, "limits_of", lambda _: [gpu])
    monkeypatch.setattr(auditor, "charge_outside", charge)
    monkeypatch.setattr(audit, "_compare_once", compare)
    audit._audit_once()  # noqa: SLF001 (its thread would do it after seconds)
    assert written == [then]
