"""Write the admission policies of the chart, from the guard's rules: ``make policies``."""

from __future__ import annotations

from pathlib import Path

from cgpu_k8s.guard.policies import write_policies
from cgpu_k8s.guard.settings import Settings

FILE = Path(__file__).parent / "cgpu" / "files" / "policies.yaml"
# The chart puts its namespace there.
ACCOUNT = "system:serviceaccount:NAMESPACE:cgpu-scheduler"


def content() -> str:
    """What the file has to contain."""
    return write_policies(Settings((ACCOUNT,)))


if __name__ == "__main__":
    FILE.write_text(content())
