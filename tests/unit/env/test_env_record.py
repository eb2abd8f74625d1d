"""Records behave as the standard library's named tuples do."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple as Standard

import pytest

from cgpu_env.record import NamedTuple

pytestmark = pytest.mark.unit


class Ours(NamedTuple):
    """A record."""

    a: int
    b: str = "x"

    @property
    def both(self) -> str:
        return f"{self.a}{self.b}"


class Theirs(Standard):
    """A named tuple."""

    a: int
    b: str = "x"

    @property
    def both(self) -> str:
        return f"{self.a}{self.b}"


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_a_record_is_made_by_place_by_name_and_from_defaults(kind: type[Ours]) -> None:
    assert kind(1) == kind(a=1) == kind(1, "x") == kind(1, b="x") == (1, "x")
    assert kind(2, "y").both == "2y"
    assert kind(1)._replace(b="z") == kind(1, "z")
    assert kind(1)._asdict() == {"a": 1, "b": "x"}
    assert kind._fields == ("a", "b")
    assert repr(kind(1)) == f"{kind.__name__}(a=1, b='x')"
    assert pickle.loads(pickle.dumps(kind(1))) == copy.copy(kind(1)) == kind(1)
    match kind(3, "c"):
        case kind(number, text):
            assert (number, text) == (3, "c")


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, "x", 2), {}), ((1,), {"a": 1}), ((1,), {"c": 1})]
)
def test_a_record_with_other_fields_is_an_error(
    kind: type[Ours], given: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        kind(*given, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_a_record_cannot_be_changed(kind: type[Ours]) -> None:
    record = kind(1)
    with pytest.raises(AttributeError):
        record.a = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        record.c = 2  # type: ignore[attr-defined]
