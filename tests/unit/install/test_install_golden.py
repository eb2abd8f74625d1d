"""Real-life configurations of each engine, and what ``cgpu install`` makes of them.

``golden/ENGINE/CASE`` is what was there; ``CASE.after`` beside it what is there then, or ``.same``
where nothing changes, or ``.refused`` with the sentence. To make them anew (and read the diff):
``PYTHONPATH=.:native:shim:hook:cli .venv/bin/python tests/unit/install/test_install_golden.py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cgpu_cli.commands.completers import ENGINE_NAMES
from cgpu_env import CgpuError
from cgpu_install.engines import ENGINES, SERVICE, read_shipped, select_engines
from cgpu_install.machine import Machine

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("golden")
OUTCOMES = (".after", ".same", ".refused")
CASES = sorted(
    path.relative_to(GOLDEN).as_posix()
    for path in GOLDEN.glob("*/*")
    if path.suffix not in OUTCOMES
)


def test_what_help_and_shells_name_are_the_engines() -> None:
    assert ENGINE_NAMES.split() == [engine.name for engine in ENGINES]


def outcome(case: str, root: Path) -> tuple[str, bytes]:
    """Which of the outcomes a case has, and its content."""
    before = (GOLDEN / case).read_bytes()
    machine = Machine(str(root))
    [engine] = select_engines([case.partition("/")[0]])
    path = engine.files(machine)[0].path
    Path(machine.resolve_path(path)).parent.mkdir(parents=True, exist_ok=True)
    Path(machine.resolve_path(path)).write_bytes(before)
    try:
        [file, *_] = engine.files(machine)
        after = file.add(machine.read_text(path), file.program).encode()
    except CgpuError as error:
        sentence = re.sub(r"(not (TOML|JSON)): .*", r"\1", str(error))  # the rest is the parser's
        return ".refused", f"{sentence}\n".encode()
    return (".same", b"") if after == before else (".after", after)


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_becomes_what_is_beside_it(case: str, tmp_path: Path) -> None:
    kind, content = outcome(case, tmp_path)
    assert (GOLDEN / f"{case}{kind}").read_bytes() == content
    assert [k for k in OUTCOMES if (GOLDEN / f"{case}{k}").exists()] == [kind]


@pytest.mark.parametrize("case", [c for c in CASES if (GOLDEN / f"{c}.after").exists()])
def test_what_was_installed_is_left_alone_and_taken_out_without_a_trace(
    case: str, tmp_path: Path
) -> None:
    """Also where the file is not the one that was written, and its bytes cannot just come back."""
    outcome(case, tmp_path)
    [engine] = select_engines([case.partition("/")[0]])
    file = engine.files(Machine(str(tmp_path)))[0]
    after = (GOLDEN / f"{case}.after").read_bytes().decode()
    assert file.add(after, file.program) == after
    taken = file.take(after, file.program)
    assert taken is None or "cgpu" not in taken
    assert file.take(taken or "", file.program) == (taken or "")


OLDER = "[Service]\nType=notify\nExecStart=/opt/old/cgpud --replace\n"


@pytest.mark.parametrize("before", ["", OLDER, read_shipped(SERVICE)])
def test_a_unit_becomes_the_one_of_this_release(before: str) -> None:
    """Own settings belong into drop-ins (`systemctl edit`), so a unit is replaced as a whole."""
    file = select_engines(["systemd"])[0].files(Machine(bin_dir="/opt/bin"))[0]
    after = file.add(before, file.program)
    assert after == read_shipped(SERVICE).replace("/usr/bin/cgpud", "/opt/bin/cgpud")
    assert file.take(after, file.program) is None


def test_another_unit_of_that_name_is_refused() -> None:
    file = select_engines(["systemd"])[0].files(Machine())[0]
    with pytest.raises(CgpuError, match="expected no such unit, or cgpu's"):
        file.add("[Service]\nExecStart=/usr/bin/sleep 1000\n", file.program)


def _make_anew() -> None:
    import tempfile  # noqa: PLC0415 (not for the tests)

    for case in CASES:
        for kind in OUTCOMES:
            (GOLDEN / f"{case}{kind}").unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as root:
            kind, content = outcome(case, Path(root))
        (GOLDEN / f"{case}{kind}").write_bytes(content)


if __name__ == "__main__":
    sys.exit(_make_anew())
