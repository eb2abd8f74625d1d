"""What the programs for Kubernetes say in an installation without the extra ``k8s``."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

# As Python finds it where a module is not installed.
START = """
import runpy, sys
sys.modules[sys.argv[1]] = None
sys.argv[1:] = []
runpy.run_module(sys.orig_argv[-1], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("cgpu_k8s.agent", "aiohttp"),
        ("cgpu_k8s.extender", "aiohttp"),
        ("cgpu_k8s.guard", "cryptography"),
        ("cgpu_k8s.inspect.main", "aiohttp"),
    ],
)
def test_a_program_names_what_is_missing_and_how_to_install_it(program: str, module: str) -> None:
    command = [sys.executable, "-c", START, module, program]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode in (1, 2)
    problem, hint = ended.stderr.splitlines()
    assert problem.endswith(f"the module {module} is missing: this program needs cgpu's extra k8s")
    assert hint == f"  in a clone of cgpu: {sys.executable} -m pip install '.[k8s]'"
