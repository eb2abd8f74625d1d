"""Recipes of CONTRIBUTING.md, applied to copies of the tree: a policy, a container engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_native import _native

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
BUILT = ("shim/cgpu_shim/_lib", "hook/cgpu_hook/_bin", "tests/sim/cgpu_sim/_lib")

POLICY = """/* Each container gets weight/8 of the GPU, and never more. */
#include "policy/policy_parts.h"

static void
entitle(struct cgpu_claim *claims, size_t count, uint32_t max_inst)
{
    uint64_t whole = cgpu_larger(8 * CGPU_WEIGHT_PARTS, cgpu_policy_weights(claims, count));

    (void)max_inst;
    for (size_t i = 0; i < count; i++) {
        claims[i].ceiling_ppm = cgpu_policy_part(claims[i].competes, whole);
        claims[i].fallback_ppm = claims[i].ceiling_ppm;
    }
}

const struct cgpu_policy cgpu_policy_eighths = {
    .name = "eighths", .entitle = entitle};
"""
# Of each file: a part of a line, and what is added below that line.
ADDED = {
    "native/policy/policy.h": {
        "CGPU_POLICY_WEIGHTED_FAIR = 6,": "    CGPU_POLICY_EIGHTHS = 7,",
        "struct cgpu_policy cgpu_policy_weighted_fair;": (
            "extern const struct cgpu_policy cgpu_policy_eighths;"
        ),
    },
    "native/policy/policy.c": {
        "= &cgpu_policy_weighted_fair,": "    [CGPU_POLICY_EIGHTHS] = &cgpu_policy_eighths,",
    },
    "node/cgpu_node/settings/rules.py": {'    "weighted-fair",': '    "eighths",'},
    "README.md": {"| **6** |": "| 7 | eighths | weight/8, never more |"},
}
CHANGED = {"native/policy/policy.h": {"CGPU_POLICIES = 7": "CGPU_POLICIES = 8"}}
# A test of the copy: of a server that serves.
USED = """

def test_a_server_takes_the_new_policy(served: Served) -> None:
    assert served.cgpu("set", "0", "policy=eighths").stderr == ""
    served.admit(A, "one")
    assert served.rules()[0][0] == 7
    assert served.smi()["gpus"][0]["policy_name"] == "eighths"
"""


ENGINE = """    ContainerEngine(
        "hull",
        programs=("hulld",),
        config=EngineConfig("/etc/hull.toml", "toml", ("runtimes", "cgpu"), ("path",)),
        commands=("systemctl reload hull",),
        scope="hull",
        pod_keys=tuple(f"io.kubernetes.cri.hull/{key}" for key in "kind uid ns pod name".split()),
        name_keys=("hull/name",),
    ),
"""
GOLDEN = {"one.toml": "debug = true\n", "one.toml.after": """debug = true

[runtimes.cgpu]
path = "/usr/bin/cgpu-runtime"
"""}  # fmt: skip
# What the copy knows of the engine then: how it is installed, a container's name and its pod.
KNOWN = """
from cgpu_cli.commands.completers import ENGINE_NAMES
from cgpu_hook.pod import pod_of
from cgpu_install.engines import select_engines
from cgpu_node.facts.engines import KnownContainer
from cgpu_node.shares.names import _list_names
from cgpu_server.audit.process_owners import _PREFIXES
print(ENGINE_NAMES.split()[4], select_engines(["hull"])[0].then, "hull" in _PREFIXES)
print(next(_list_names(KnownContainer("1", "", {}, {"hull/name": "web"}))))
keys = {f"io.kubernetes.cri.hull/{part}": part for part in "kind uid ns pod name".split()}
print(pod_of({"annotations": keys})[:4])
"""


def copy_tree(root: Path) -> None:
    """Copy this tree to ``root``, with the binaries that it has."""
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    for name in BUILT:
        (root / name).symlink_to(ROOT / name)


@pytest.fixture(name="copy", scope="module")
def _copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with a policy 7, its binding built; the other binaries are those of this tree."""
    root = tmp_path_factory.mktemp("recipe") / "cgpu"
    copy_tree(root)
    (root / "native/policy/policy_eighths.c").write_text(POLICY)
    for name, parts in ADDED.items():
        text = (root / name).read_text()
        for part, line in parts.items():
            assert text.count(part) == 1, (name, part)
            end = text.index("\n", text.index(part))
            text = f"{text[:end]}\n{line}{text[end:]}"
        for old, new in CHANGED.get(name, {}).items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (root / name).write_text(text)
    with (root / "tests/integration/cli/test_targets.py").open("a") as tests:
        tests.write(USED)
    run(root, "setup.py", "-q", "build_ext", "--inplace")
    run(root, "deploy/man")
    return root


def run(root: Path, *arguments: str) -> str:
    """What Python prints in the copy."""
    folders = (".", "native", "shim", "node", "hook", "server", "cli", "k8s", "tests", "tests/sim")
    path = os.pathsep.join(str(root / folder) for folder in folders)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_new_policy_is_what_its_file_says(copy: Path) -> None:
    code = (
        "from cgpu_native.policies import entitle_containers;"
        "print(*entitle_containers(7, [(1, 0), (4, 0)], 20), sep='\\n')"
    )
    assert run(copy, "-c", code).splitlines() == [
        "Entitlement(competes=100, ceiling_ppm=125000, fallback_ppm=125000)",
        "Entitlement(competes=400, ceiling_ppm=500000, fallback_ppm=500000)",
    ]


def test_the_copys_own_tests_pass(copy: Path) -> None:
    """Names agree in C, Python, README and manual; a server takes the policy by its name."""
    run(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k",
        "(policy or policies) and not address and not thread",
        "tests/unit/native/test_native_policies.py", "tests/unit/project/test_manual_pages.py",
        "tests/unit/server/test_server_rules.py", "tests/unit/cli/test_run_options.py",
        "tests/unit/node/test_node.py", "tests/integration/cli/test_targets.py",
        "tests/integration/server/test_control_tree.py", "tests/c/test_c.py",
    )  # fmt: skip


def test_a_new_engine_is_one_row_and_one_folder(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    (tmp_path / "native/cgpu_native/_native.abi3.so").symlink_to(_native.__file__)
    table = tmp_path / "node/cgpu_node/facts/engines.py"
    last = '    ContainerEngine("nerdctl"'
    assert table.read_text().count(last) == 1
    table.write_text(table.read_text().replace(last, ENGINE + last))
    golden = tmp_path / "tests/unit/install/golden/hull"
    golden.mkdir()
    for name, text in GOLDEN.items():
        (golden / name).write_text(text)
    assert run(tmp_path, "-c", KNOWN).splitlines() == [
        "hull ('systemctl reload hull',) True", "web", "('uid', 'ns', 'pod', 'name')",
    ]  # fmt: skip
    run(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "hull or engines",
        "tests/unit/install/test_install_golden.py", "tests/unit/node/test_names.py",
    )  # fmt: skip
