"""What a guest reads of the share that root's server gave it (CLI-2)."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_cli.running import guest
from cgpu_env import GpuShare

pytestmark = pytest.mark.unit

NAMED = {"shares": [{"index": 1, "uuid": "GPU-a", "cap_bytes": 7, "later": 1}]}
RELEASE_0_1 = {"gpus": [[1, "GPU-a", 7]]}


@pytest.mark.parametrize("answer", [NAMED, RELEASE_0_1, {**RELEASE_0_1, **NAMED}])
def test_a_share_is_read_whichever_release_answers(answer: dict[str, Any]) -> None:
    assert guest._parse_shares(answer) == (GpuShare(1, "GPU-a", 7),)  # noqa: SLF001 (the answer's form)
