"""What a container's environment asks for: ENV-1..10 of docs/contract.md."""

from __future__ import annotations

import pytest

import cgpu_env
from cgpu_env import EnvError, Gpu, GpuShare, Request, parse_environment
from cgpu_env import request as request_module
from cgpu_env.request import PASSED_OVER
from lab.shares.asked import FOUR, MIB, P100, T4, caps, env, is_asked, order, parse, parse_request

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("gpu", "mem", "dev", "mib"), [(T4, "6", "15", 6043), (P100, "2", "15", 2154)]
)
def test_the_published_results_come_out(gpu: Gpu, mem: str, dev: str, mib: int) -> None:
    """ENV-8."""
    assert caps((gpu,), mem=mem, dev=dev)[0] // MIB == mib


def test_the_cap_is_rounded_down_to_the_byte() -> None:
    """ENV-8."""
    assert caps((Gpu(0, "GPU-a", 100),), mem="1", dev="3") == [33]
    assert caps((T4,), mem="6", dev="15") == [6337173913]


@pytest.mark.parametrize(
    ("mem", "shares"),
    [
        ("3", [3, 3, 3, 3]),
        ("3,1", [3, 1, 1, 1]),
        ("3,4,5,6", [3, 4, 5, 6]),
        ("5,5,2", [5, 5, 2, 2]),
    ],
)
def test_the_last_share_repeats(mem: str, shares: list[int]) -> None:
    """ENV-3."""
    expected = [gpu.total_bytes * n // 15 for gpu, n in zip(FOUR, shares, strict=True)]
    assert caps(mem=mem, dev="15") == expected


def test_a_list_of_totals_is_read_like_a_list_of_shares() -> None:
    """ENV-2."""
    expected = [gpu.total_bytes * 3 // n for gpu, n in zip(FOUR, [15, 16, 16, 16], strict=True)]
    assert caps(mem="3", dev="15,16") == expected


def test_a_whole_gpu_may_be_asked_for() -> None:
    assert caps((T4,), mem="15", dev="15") == [T4.total_bytes]


@pytest.mark.parametrize("mem", ["0", "1,0,0", "0,5", " 0 ", "1,1,1,1,0,1"])
def test_a_zero_switches_cgpu_off_whatever_is_set_beside_it(mem: str) -> None:
    """ENV-4."""
    assert parse(mem=mem, dev="15", weight="2", prio="1") is None
    assert parse(mem=mem) is None
    assert parse((), mem=mem) is None


@pytest.mark.parametrize("mem", ["", " "])
def test_no_value_switches_cgpu_off(mem: str) -> None:
    """ENV-4."""
    assert parse(mem=mem) is None
    assert parse((), mem=mem, visible="0") is None


@pytest.mark.parametrize("name", sorted(PASSED_OVER))
def test_what_published_tools_set_besides_is_passed_over(name: str) -> None:
    """ENV-11: the variables that schedulers and device plugins of this ecosystem set."""
    assert not is_asked({name: "anything"})
    assert parse_request({**env(mem="6", dev="15"), name: ""}, FOUR) == parse(mem="6", dev="15")


def test_variables_with_other_beginnings_are_nobodys_business() -> None:
    """ENV-11."""
    assert not is_asked({"ALIYUN_COM_GPU": "6", "ALIYUN_REGION": "x", "XALIYUN_COM_GPU_MEM": "6"})


A100 = tuple(Gpu(i, f"GPU-a{i}", 81559 * MIB) for i in range(8))

SMALL = Gpu(8, "GPU-small", 6046 * MIB)


def notes(*gpus: Gpu, **values: str) -> tuple[str, ...]:
    request = parse(gpus, **values)
    assert request is not None
    return request.notes


def test_a_whole_that_is_far_off_is_said_with_the_cap_that_follows() -> None:
    """ENV-2: the cap is the same."""
    assert caps(A100, mem="6", dev="15") == [81559 * MIB * 6 // 15] * 8
    (output,) = notes(*A100, mem="6", dev="15")
    assert output == (
        "GPUs 0,1,2,3,4,5,6,7 have 81559 MiB, not the 15 GiB of ALIYUN_COM_GPU_MEM_DEV:"
        " 6 of 15 is 32623 MiB"
    )
    assert notes(T4, A100[1], mem="6,5", dev="80") == (
        "GPU 0 has 15109 MiB, not the 80 GiB of ALIYUN_COM_GPU_MEM_DEV: 6 of 80 is 1133 MiB",
    )


@pytest.mark.parametrize(
    ("gpu", "dev"),
    [(T4, "15"), (T4, "14"), (T4, "16"), (P100, "15"), (P100, "16"), (A100[0], "80"), (SMALL, "5")],
)
def test_a_whole_that_is_nearly_right_or_rounded_is_not_worth_a_word(gpu: Gpu, dev: str) -> None:
    """ENV-2: device plugins cut off what is no whole GiB."""
    assert notes(gpu, mem="1", dev=dev) == ()


def test_a_whole_in_the_unit_of_a_device_plugin_is_taken_in_it() -> None:
    """ENV-2, ENV-11."""
    unit = "ALIYUN_COM_GPU_MEM_UNIT"
    for name, dev, output in (
        ("GiB", "15", 0),
        ("GiB", "15109", 1),
        ("MiB", "15109", 0),
        ("MiB", "6000", 1),
        ("pages", "7", 0),
    ):
        request = parse_request({**env(mem="5", dev=dev), unit: name}, (T4,))
        assert request is not None
        assert len(request.notes) == output


def test_an_empty_environment_switches_cgpu_off() -> None:
    """ENV-4."""
    assert parse_request({}, FOUR) is None


@pytest.mark.parametrize("given", [{}, {"mem": ""}, {"mem": "", "dev": "15"}])
def test_the_default_size_caps_containers_that_name_none(given: dict[str, str]) -> None:
    """ENV-4."""
    small = Gpu(1, "GPU-small", 2048)
    request = parse_request(env(**given), (T4, small), default_memsize=4096)
    assert request is not None
    assert [share.cap_bytes for share in request.gpus] == [4096, 2048]


@pytest.mark.parametrize(("part", "bytes_"), [("40%", [6043, 400]), ("2/5", [6043, 400])])
def test_a_default_size_may_be_a_part_of_each_gpu(part: str, bytes_: list[int]) -> None:
    """ENV-4."""
    small = Gpu(1, "GPU-small", 1001 * MIB)
    request = parse_request({}, (T4, small), default_memsize=part)
    assert request is not None
    assert [share.cap_bytes // MIB for share in request.gpus] == bytes_
    assert is_asked({}, default_memsize=part)


def test_a_default_size_of_a_whole_that_is_far_off_is_said_by_its_name() -> None:
    """ENV-2, ENV-4."""
    request = parse_request({}, (T4,), default_memsize="6/80")
    assert request is not None
    assert request.notes == (
        "GPU 0 has 15109 MiB, not the 80 GiB of default_memsize=6/80: 6 of 80 is 1133 MiB",
    )


def test_a_default_size_above_a_gpu_is_noted_with_what_the_container_gets() -> None:
    """ENV-4: a GPU that is large enough has no note."""
    large, small = Gpu(1, "GPU-large", 80 << 30), T4._replace(index=2, uuid="GPU-small")
    request = parse_request({}, (T4, large, small), default_memsize=60 << 30)
    assert request is not None
    assert request.gpus[0].cap_bytes == T4.total_bytes
    sentence = "GPUs 0,2 have 15109 MiB, less than default_memsize=61440MiB"
    assert request.notes == (f"{sentence}: a container that names no size gets the whole GPU",)
    assert parse(mem="3", dev="15").notes == ()


@pytest.mark.parametrize("mem", ["0", "1,0", "3"])
def test_the_default_size_does_not_replace_a_size_that_is_named(mem: str) -> None:
    """ENV-4."""
    with_default = parse_request(env(mem=mem, dev="15"), FOUR, default_memsize=4096)
    assert with_default == parse(mem=mem, dev="15")


def test_the_default_size_asks_nothing_of_a_node_or_container_without_gpus() -> None:
    assert parse_request({}, (), default_memsize=4096) is None
    assert parse_request(env(nvidia="void"), FOUR, default_memsize=4096) is None


@pytest.mark.parametrize("value", ["true", "TRUE", "True", "1", " true "])
def test_disable_switches_cgpu_off_whatever_else_is_set(value: str) -> None:
    """ENV-1."""
    assert parse(disable=value, mem="abc", dev="-1", weight="x", prio="7", visible=",") is None


@pytest.mark.parametrize("value", ["false", "FALSE", "0", " 0 "])
def test_disable_false_is_the_default(value: str) -> None:
    """ENV-1."""
    assert parse(disable=value, mem="3", dev="15") == parse(mem="3", dev="15")


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("all", [0, 1, 2, 3]),
        (" all ", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        (T4.uuid, [0]),
        ("GPU-aaaa1111", [0]),
        ("aaaa2", [1]),
        ("GPU-b,0", [2, 0]),
        ("GPU-BBBB", [2]),
        ("GPU-1", [3]),
        ("1b", [3]),
    ],
)
def test_gpus_are_named_by_index_uuid_or_unique_prefix(visible: str, indices: list[int]) -> None:
    """ENV-5."""
    assert order(visible=visible) == indices
    assert order(nvidia=visible) == indices


def test_without_a_visible_list_all_gpus_are_seen() -> None:
    """ENV-5."""
    assert order() == [0, 1, 2, 3]


def test_our_visible_list_wins_over_nvidias() -> None:
    """ENV-5."""
    assert order(visible="1", nvidia="0,2") == [1]
    assert order(visible="1", nvidia="none") == [1]
    assert order(visible="1", nvidia="no such GPU") == [1]


@pytest.mark.parametrize("nvidia", ["", "none", "void", " void "])
def test_nvidias_words_for_no_gpu_switch_cgpu_off(nvidia: str) -> None:
    """ENV-5."""
    assert parse(mem="3", dev="15", nvidia=nvidia) is None


def test_weight_and_priority_are_read() -> None:
    """ENV-6, ENV-7."""
    plain = parse(mem="1", dev="15")
    given = parse(mem="1", dev="15", weight=" 20 ", prio="1")
    assert plain is not None
    assert given is not None
    assert (plain.weight, plain.high_priority) == (1, False)
    assert (given.weight, given.high_priority) == (20, True)


@pytest.mark.parametrize("weight", [1, 20, 21, 22, 25])
def test_every_weight_that_some_gpu_allows_is_read(weight: int) -> None:
    """ENV-6: max_inst is the GPU's own, and admission knows it."""
    request = parse(mem="1", dev="15", weight=str(weight))
    assert request is not None
    assert request.weight == weight
    assert is_asked(env(mem="1", dev="15", weight=str(weight)))


def test_nvidias_variable_is_not_judged_where_cgpu_is_off() -> None:
    """ENV-4: the container gets the default NVIDIA path."""
    assert parse(nvidia="nvidia.com/gpu=all") is None


def test_white_space_around_values_and_items_is_accepted() -> None:
    """ENV-10."""
    assert caps(mem=" 3 ,\t1 ", dev="\t15\n") == caps(mem="3,1", dev="15")


def test_of_duplicate_variables_the_last_wins() -> None:
    assert parse_environment(["A=1", "B=x=y", "A=2", "C", "D="]) == {
        "A": "2",
        "B": "x=y",
        "C": "",
        "D": "",
    }


def test_a_request_says_what_it_was_made_from_for_a_refusal_to_quote() -> None:
    given = {**env(mem=" 6 ", dev="15"), "PATH": "/bin"}
    request = cgpu_env.parse_request(given, FOUR)
    assert request is not None
    assert request.asked is not None
    assert request.asked.given == given


def test_the_default_size_is_asked_for_only_where_no_size_is_named() -> None:
    """Or every start of a container would read one file more."""
    asked: list[int] = []

    def default() -> int:
        asked.append(4096)
        return 4096

    for named in ({"mem": "6", "dev": "15"}, {"mem": "0"}, {"mem": "6", "disable": "1"}):
        request_module.parse_variables(env(**named), default)
    assert not asked
    found = request_module.parse_variables({}, default)
    assert found is not None
    assert (found.default_memsize, asked) == (4096, [4096])


def test_shares_carry_index_and_uuid_in_visible_order() -> None:
    """CLI-7 depends on the order."""
    request = parse(mem="3,1", dev="15", visible="1,0")
    assert request == Request(
        (
            GpuShare(1, P100.uuid, P100.total_bytes * 3 // 15),
            GpuShare(0, T4.uuid, T4.total_bytes // 15),
        ),
        1,
        False,  # noqa: FBT003
    )


def test_whether_cgpu_is_asked_for_shows_without_the_nodes_gpus() -> None:
    """ENV-1, ENV-4: a container that does not use cgpu needs no working driver."""
    assert is_asked(env(mem="6", dev="15"))
    assert is_asked({}, default_memsize=4096)
    assert not is_asked(env(mem="0"))
    assert not is_asked({})
    assert not is_asked(env(mem="6", disable="1"))
    with pytest.raises(EnvError):
        is_asked(env(mem="6", weight="26"))
