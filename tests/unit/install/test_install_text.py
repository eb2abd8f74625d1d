"""Changing one value of a configuration's text changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env import CgpuError
from cgpu_install import json_text, toml_text

pytestmark = pytest.mark.unit

KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
LAYOUTS = st.sampled_from([None, 0, 2, "\t"])
PATH = ("runtimes", "cgpu")


def texts(data: dict[str, Any], indent: int | str | None) -> str:
    return json.dumps(data, indent=indent, ensure_ascii=False)


@given(OBJECTS, st.none() | OBJECTS, LAYOUTS)
def test_a_value_put_into_json_is_there_beside_all_that_was(
    data: dict[str, Any], runtimes: dict[str, Any] | None, indent: int | str | None
) -> None:
    data.pop("runtimes", None)
    if runtimes is not None:
        runtimes.pop("cgpu", None)
        data["runtimes"] = runtimes
    text = texts(data, indent)
    put = json_text.set_value(text, PATH, {"path": "/x"})
    assert json.loads(put) == {**data, "runtimes": {**(runtimes or {}), "cgpu": {"path": "/x"}}}
    again = json_text.set_value(put, (*PATH, "path"), "/y")
    assert again == put.replace('"path": "/x"', '"path": "/y"') or "/x" in text
    assert json.loads(json_text.remove_value(put, PATH)) == {**data, "runtimes": runtimes or {}}


@given(OBJECTS.filter(bool), LAYOUTS)
def test_what_was_put_into_json_last_is_taken_out_to_the_byte(
    data: dict[str, Any], indent: int | str | None
) -> None:
    data.pop("cgpu", None)
    text = texts(data, indent)
    if data:
        assert (
            json_text.remove_value(json_text.set_value(text, ("cgpu",), {"a": []}), ("cgpu",))
            == text
        )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_member_is_taken_out_of_json_wherever_it_is(place: int) -> None:
    names = ["a", "b"]
    names.insert(place, "cgpu")
    text = texts({name: {"x": [1, "}"]} for name in names}, 2)
    assert list(json.loads(json_text.remove_value(text, ("cgpu",)))) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        *("{'a': 1}", "{} {}", "nul", '{"a": NaN}', '{"a": {"b": 1, "b": 2}}', "[" * 100000),
        '{"a":' * 400 + "1" + "}" * 400,
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(CgpuError):
        json_text.set_value(text, PATH, 1)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = " + "[" * 400 + "]" * 400, "a = {"])
def test_what_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(CgpuError):
        toml_text.set_value(text, PATH, 1)


def test_toml_into_which_a_table_was_put_can_be_read_by_what_takes_it_out() -> None:
    """tomlkit cannot read every order of tables that TOML allows."""
    text = "[plugins]\n[plugins.a.x]\n[plugins.b.x]\n[plugins.a.y]\n[other]\n"
    path = ("plugins", "a", "x", "runtimes", "cgpu")
    after = toml_text.set_value(text, path, {"path": "/x"})
    assert toml_text.parse(toml_text.remove_value(after, path[:-1])) == toml_text.parse(text)


def test_toml_that_tomlkit_stumbles_over_is_refused() -> None:
    """Tables in an order that TOML allows, which it meets with an AttributeError."""
    text = "[p]\n  [p.a.b.c.d.e]\n  [p.a.b.f]\n  [p.a.b.c.g.h]\n"
    assert "p" in toml_text.parse(text)
    with pytest.raises(CgpuError, match=r"^written in a way that cgpu cannot change: "):
        toml_text.set_value(text, ("p", "a", "b", "c", "cgpu"), {"path": "/x"})


def test_a_toml_text_that_tomlkit_would_spoil_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library does: what is written was read again first."""
    monkeypatch.setattr(toml_text.tomlkit, "dumps", lambda _: "a = 2\n")
    with pytest.raises(CgpuError, match="cannot change safely"):
        toml_text.set_value("a = 1\nb = 1\n", ("a",), 2)
