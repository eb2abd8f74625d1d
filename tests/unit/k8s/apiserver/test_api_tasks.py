"""Works of programs that follow the API server."""

from __future__ import annotations

import pytest

from cgpu_k8s.apiserver.tasks import run_coroutine

pytestmark = pytest.mark.unit


def test_a_large_result_is_handed_over_and_not_written_out() -> None:
    class Large:
        def __repr__(self) -> str:
            raise AssertionError("written out")

    large = Large()

    async def work() -> Large:
        return large

    assert run_coroutine(work()) is large


def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run_coroutine(work())
