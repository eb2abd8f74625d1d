"""Properties of the environment's reading that hold for every input (ENV-3, ENV-8..10)."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env import EnvError, Gpu, parse_request
from cgpu_env.request import (
    DISABLE,
    HIGH_PRIO,
    MEM_CONTAINER,
    MEM_DEV,
    PASSED_OVER,
    VISIBLE,
    WEIGHT,
    parse_variables,
)

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
KNOWN = [DISABLE, HIGH_PRIO, MEM_CONTAINER, MEM_DEV, VISIBLE, WEIGHT]
sizes = st.integers(1, 1 << 50)
blank = st.text(" \t\n\r", max_size=3)


def machine(memory: list[int]) -> list[Gpu]:
    return [Gpu(i, f"GPU-{i:08x}-0000-4000-8000-000000000000", m) for i, m in enumerate(memory)]


@given(st.lists(sizes, min_size=1, max_size=8), st.data())
def test_caps_are_the_exact_floor_and_never_exceed_the_gpu(
    memory: list[int], data: st.DataObject
) -> None:
    """ENV-3, ENV-8."""
    devs = data.draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=len(memory)))
    whole = devs + devs[-1:] * (len(memory) - len(devs))
    shares = [data.draw(st.integers(1, w)) for w in whole]
    env = {MEM_CONTAINER: ",".join(map(str, shares)), MEM_DEV: ",".join(map(str, devs))}
    request = parse_request(env, machine(memory))
    assert request is not None
    for gpu, total, part, dev in zip(request.gpus, memory, shares, whole, strict=True):
        exact = Fraction(total) * part / dev
        assert gpu.cap_bytes <= exact < gpu.cap_bytes + 1
        assert gpu.cap_bytes <= total


@given(st.dictionaries(st.sampled_from(KNOWN), st.text(max_size=12)))
def test_any_environment_is_read_or_refused_in_one_line(env: dict[str, str]) -> None:
    """ENV-9."""
    try:
        request = parse_request(env, machine([15109 << 20, 16160 << 20]))
    except EnvError as error:
        message = str(error)
    else:
        assert request is None or all(gpu.cap_bytes > 0 for gpu in request.gpus)
        return
    assert message.isprintable()
    assert any(name in message for name in KNOWN)


@given(st.text(min_size=1, max_size=8))
def test_only_ascii_digits_make_a_share(text: str) -> None:
    """ENV-10."""
    plain = text.strip(" \t\n\r\f\v")
    wanted = plain.isascii() and plain.isdecimal() and plain == str(int(plain))
    env = {MEM_CONTAINER: text, MEM_DEV: "1048576"}
    try:
        request = parse_request(env, machine([1 << 40]))
    except EnvError:
        assert not (wanted and int(plain) <= 1 << 20)
    else:
        assert plain in {"", "0"} if request is None else wanted


@given(blank, blank, blank, blank)
def test_blanks_around_items_change_nothing(a: str, b: str, c: str, d: str) -> None:
    """ENV-10."""
    gpus = machine([15109 << 20] * 2)
    spaced = {MEM_CONTAINER: f"{a}3{b},{c}1{d}", MEM_DEV: f"{d}15{a}", VISIBLE: f"{b}1{c},{a}0{d}"}
    plain = {MEM_CONTAINER: "3,1", MEM_DEV: "15", VISIBLE: "1,0"}
    requests = [parse_request(given, gpus) for given in (spaced, plain)]
    one, other = (request and request._replace(asked=None) for request in requests)
    assert one == other


@given(st.permutations(range(6)), st.integers(1, 6))
def test_the_order_of_the_visible_list_is_kept(order: list[int], count: int) -> None:
    """ENV-5."""
    gpus = machine([15109 << 20] * 6)
    names = [str(i) if i % 2 else gpus[i].uuid[: len("GPU-00000000")] for i in order[:count]]
    request = parse_request({MEM_CONTAINER: "1", MEM_DEV: "15", VISIBLE: ",".join(names)}, gpus)
    assert request is not None
    assert [gpu.index for gpu in request.gpus] == order[:count]


@given(st.text("ABCDEGIMNOPRSTUVW_", min_size=1, max_size=14))
def test_no_variable_of_ours_is_read_over(name: str) -> None:
    """ENV-11: each is known, or refused with a word of it."""
    variable = f"ALIYUN_COM_GPU_{name}"
    known = variable in KNOWN or variable in PASSED_OVER
    if known:
        parse_variables({variable: "1"}, lambda: 0)
        return
    with pytest.raises(EnvError, match=variable):
        parse_variables({variable: "1"}, lambda: 0)


def test_importing_the_vocabulary_pulls_in_nothing_slow() -> None:
    """The import stays under 5 ms because none of these is behind it."""
    slow = "{'typing', 're', 'enum', 'json', 'collections', 'contextlib', 'functools', 'pathlib'}"
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    code = f"{path}; import cgpu_env; print({slow} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
