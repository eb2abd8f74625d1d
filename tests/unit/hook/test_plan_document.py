"""Reading and writing config.json: hostile files are refused, at once and in one sentence."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env import CgpuError
from cgpu_hook import document
from cgpu_node import jsontext

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises(CgpuError) as caught:
        document.read(str(path))
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b"{} {}", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"process": {}, "process": {}}', "process stands twice"),
        (b'{"process": {"env": [], "env": []}}', "env stands twice"),
        (b'{"proces\\u0073": {}, "process": {}}', "process stands twice"),
        (b'{"Process": {"env": []}}', "expected it to be written process"),
        (b'{"process": {"ENV": []}}', "expected it to be written process.env"),
        (b'{"proce\\u017fs": {"env": []}}', "expected it to be written process"),
        (b'{"hoo\\u212as": {}}', "expected it to be written hooks"),
        (
            b'{"mounts": [{"destination": "/a", "Destination": "/b"}]}',
            "expected it to be written mounts.destination",
        ),
        (
            b'{"linux": {"devices": [{"path": "/a", "PATH": "/b"}]}}',
            "expected it to be written linux.devices.path",
        ),
        (b'{"process": []}', "process has the wrong type"),
        (b'{"process": {"env": "A=1"}}', "process.env has the wrong type"),
        (b'{"mounts": {}}', "mounts has the wrong type"),
        (b'{"mounts": [1]}', "expected objects with a destination"),
        (b'{"mounts": [{"destination": 1}]}', "expected objects with a destination"),
        (b'{"mounts": [{"Destination": "/dev"}]}', "expected objects with a destination"),
        (b'{"linux": {"devices": {}}}', "linux.devices has the wrong type"),
        (b'{"linux": {"resources": {"devices": 3}}}', "linux.resources.devices has the wrong"),
        (b'{"hooks": {"poststop": {}}}', "hooks.poststop has the wrong type"),
        (b'{"root": {"path": 3}}', "root.path has the wrong type"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 200000, "nested too deeply"),
        (b'{"a":' * 200000, "nested too deeply"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b"9" * 5000, "not valid JSON: a number of 5000 characters is too long"),
        (b'{"a": -1e400}', "not valid JSON: the number -1e400 is too large"),
        (b'{"root": {"path": "/a\\u0000b"}}', "/a\\x00b: expected no NUL and no half of a"),
        (b'{"process": {"env": ["A=\\uD800"]}}', "A=\\ud800: expected no NUL and no half of a"),
        (b'{"process": {"\\udc80": 1}}', "\\udc80: expected no NUL and no half of a"),
    ],
)
def test_rel_4_an_odd_configuration_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    assert why in refusal(path)


def test_rel_4_a_configuration_that_is_too_deep_to_be_written_is_refused(tmp_path: Path) -> None:
    """An interpreter can read what it cannot write in a deeper call."""
    path = tmp_path / "config.json"
    path.write_text("{}")
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(CgpuError, match=r"config\.json: cannot be written: nested too deeply"):
        document.write(str(path), {"annotations": deep})
    assert path.read_text() == "{}"
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_rel_4_a_giant_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(document.MAX_BYTES + 1)
    assert "larger than 16 MiB" in refusal(path)


def test_rel_4_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert "not a regular file" in refusal(tmp_path / "fifo")
    assert "not a regular file" in refusal(tmp_path)
    assert "not a regular file" in refusal(tmp_path / "link")
    assert "symbolic links" in refusal(tmp_path / "loop")
    assert "No such file" in refusal(tmp_path / "missing")
    assert "not a regular file" in refusal(Path("/dev/null"))


def test_rel_4_what_nobody_takes_for_a_path_may_be_any_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(r'{"annotations": {"a": "\u0000\ud800"}, "b": "\\u0000 \ud83d\ude00"}')
    assert document.read(str(path))["b"] == "\\u0000 \N{GRINNING FACE}"


def test_rel_4_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    assert "no file can have this name" in refusal(tmp_path / "a\0b")
    assert "no file can have this name" in refusal(tmp_path / "\ud800")


def test_rel_4_a_name_that_stands_twice_is_found_in_one_pass() -> None:
    """Among 300,000 names it took minutes."""

    class Name(str):
        compared = 0
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    names = [*map(str, range(1000)), "999"]
    with pytest.raises(ValueError, match="the name 999 stands twice"):
        jsontext._build_object([(Name(name), None) for name in names])  # noqa: SLF001
    assert Name.compared < 10 * len(names)


def test_null_sections_are_as_good_as_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"process": null, "mounts": null, "linux": null, "hooks": null}')
    assert document.read(str(path))["mounts"] is None


def test_names_in_annotations_may_differ_in_case_only(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"annotations": {"a": "1", "A": "2", "Process": "3"}}')
    assert document.read(str(path))["annotations"]["A"] == "2"


def test_writing_keeps_mode_and_owner_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0o640)
    os.chown(path, 12, 34)
    document.write(str(path), {"a": 1})
    facts = path.stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid) == (0o640, 12, 34)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["config.json"]  # noqa: PTH208


def test_a_link_is_read_and_then_replaced_and_its_file_stays(tmp_path: Path) -> None:
    """runc reads it, too; the file may be a template of many bundles."""
    template, path = tmp_path / "template", tmp_path / "config.json"
    template.write_text("{}")
    template.chmod(0o640)
    path.symlink_to("template")
    assert document.read(str(path)) == {}
    document.write(str(path), {"a": 1})
    assert (json.loads(path.read_text()), template.read_text()) == ({"a": 1}, "{}")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(TypeError):
        document.write(str(path), {"a": object()})
    assert path.read_text() == "{}"
    with pytest.raises(CgpuError, match="cannot be written"):
        document.write(str(tmp_path / "none" / "config.json"), {})
    assert os.listdir(tmp_path) == ["config.json"]  # noqa: PTH208


@given(values)
def test_json_is_read_and_written_as_the_standard_library_does(value: Any) -> None:
    text = json.dumps(value)
    assert jsontext.loads(f" {text}\n") == value
    assert json.loads(jsontext.dumps(value)) == value


@given(st.text(max_size=30) | st.text('{}[]",:0123eE.-\\u ', max_size=30))
def test_json_is_refused_where_the_standard_library_refuses(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011
            jsontext.loads(text)
        return
    try:
        assert jsontext.loads(text) == expected
    except ValueError as error:
        known = ("stands twice", "is not JSON", "is too large", "is too long")
        assert any(map(str(error).__contains__, known))  # noqa: PT017


@pytest.mark.parametrize("text", ['{"a"', '{"a": 1,}', '"x', "{x"])
def test_bad_json_is_refused_in_an_interpreter_that_has_not_imported_json(text: str) -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'node')]!r}\n"
        "from cgpu_node import jsontext\n"
        "assert 'json' not in sys.modules\n"
        f"try:\n    jsontext.loads({text!r})\nexcept ValueError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
