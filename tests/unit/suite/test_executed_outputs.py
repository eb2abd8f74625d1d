"""What tests read of a program in a container is all that it prints, however late that comes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.kubernetes.kubelet import KubeletNode

pytestmark = pytest.mark.unit

POD = {"status": {"containerStatuses": [{"name": "main", "containerID": "containerd://c1"}]}}


class SlowNode(KubeletNode):
    """Its engine's client ends when the engine has written half of what a program prints."""

    def __init__(self, base: Path, printed: str, status: int) -> None:
        self.installed: Any = SimpleNamespace(base=base)
        self._socket = base / "socket"
        self._printed, self._status = printed, status

    def run(self, *words: str | Path) -> str:
        [log] = [str(each) for each in words if str(each).startswith("--log-uri=file://")]
        file = Path(log.partition("file://")[2])
        file.write_text(self._printed[: len(self._printed) // 2])
        whole = f"{self._printed}\nended with status {self._status}\n"
        threading.Timer(0.2, file.write_text, [whole]).start()
        return ""


def test_the_rest_of_an_output_is_waited_for(tmp_path: Path) -> None:
    node = SlowNode(tmp_path, "GPU 0\nGPU 1\n", 0)
    assert node.execute(POD, "main", "nvidia-smi", "-L") == "GPU 0\nGPU 1\n"


def test_a_program_that_fails_is_shown_with_all_that_it_printed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"'false'.*: first\nlast\n"):
        SlowNode(tmp_path, "first\nlast\n", 1).execute(POD, "main", "false")
