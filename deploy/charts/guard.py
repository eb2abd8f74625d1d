"""Writes the chart's policies and webhook configurations from the guard's rules: ``make guard``."""

from __future__ import annotations

from pathlib import Path

from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.admission.webhooks import VERSIONS, dump_objects

FOLDER = Path(__file__).parent / "cgpu" / "files"
NAMESPACE = "NAMESPACE"  # the chart replaces it by the release's namespace


def files() -> dict[Path, str]:
    """Return the content of each file."""
    account = f"system:serviceaccount:{NAMESPACE}:cgpu-{{}}"
    settings = Settings((account.format("scheduler"),), account.format("agent"))
    return {
        FOLDER / f"guard-1.{minor}.yaml": dump_objects(settings, NAMESPACE, minor)
        for minor in VERSIONS
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
