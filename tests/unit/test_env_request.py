"""What a container's environment asks for: ENV-1..10 of docs/contract.md."""

# ruff: noqa: RUF001  (look-alike digits and letters are what is tested)
from __future__ import annotations

from collections.abc import Sequence

import pytest

import cgpu_env
from cgpu_env import EnvError, Gpu, GpuShare, Request, environment
from cgpu_env import request as request_module
from cgpu_env.request import PASSED_OVER

pytestmark = pytest.mark.unit

MIB = 1 << 20
T4 = Gpu(0, "GPU-aaaa1111-0000-0000-0000-000000000000", 15109 * MIB)
P100 = Gpu(1, "GPU-aaaa2222-0000-0000-0000-000000000000", 16160 * MIB)
THIRD = Gpu(2, "GPU-bbbb0000-0000-0000-0000-000000000000", 15109 * MIB)
FOURTH = Gpu(3, "GPU-1b0c0000-0000-0000-0000-000000000000", 15109 * MIB)
FOUR = (T4, P100, THIRD, FOURTH)
SHORT = {
    "mem": "ALIYUN_COM_GPU_MEM_CONTAINER",
    "dev": "ALIYUN_COM_GPU_MEM_DEV",
    "visible": "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    "weight": "ALIYUN_COM_GPU_SCHD_WEIGHT",
    "prio": "ALIYUN_COM_GPU_HIGH_PRIO",
    "disable": "CGPU_DISABLE",
    "nvidia": "NVIDIA_VISIBLE_DEVICES",
}


def env(**values: str) -> dict[str, str]:
    return {SHORT[name]: value for name, value in values.items()}


def parse_request(
    given: dict[str, str],
    gpus: Sequence[Gpu],
    *,
    default_memsize: int | str = 0,
    has_units: bool = False,
) -> Request | None:
    """What is asked for, without the variables that it was made from."""
    found = cgpu_env.parse_request(
        given, gpus, default_memsize=default_memsize, has_units=has_units
    )
    return None if found is None else found._replace(asked=None)


def is_asked(given: dict[str, str], default_memsize: int | str = 0) -> bool:
    """Whether cgpu is on, as far as that shows without the node's GPUs."""
    return request_module.parse(given, lambda: default_memsize) is not None


def parse(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> Request | None:
    return parse_request(env(**values), gpus)


def caps(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> list[int]:
    request = parse(gpus, **values)
    assert request is not None
    return [share.memory_bytes for share in request.gpus]


def order(**values: str) -> list[int]:
    request = parse(mem="1", dev="15", **values)
    assert request is not None
    return [share.index for share in request.gpus]


def refusal(gpus: tuple[Gpu, ...] = FOUR, **values: str) -> str:
    with pytest.raises(EnvError) as caught:
        parse(gpus, **values)
    message = str(caught.value)
    assert message.isprintable()
    assert caught.value.exit_code == 2
    return message


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
    expected = [gpu.memory_bytes * n // 15 for gpu, n in zip(FOUR, shares, strict=True)]
    assert caps(mem=mem, dev="15") == expected


def test_a_list_of_totals_is_read_like_a_list_of_shares() -> None:
    """ENV-2."""
    expected = [gpu.memory_bytes * 3 // n for gpu, n in zip(FOUR, [15, 16, 16, 16], strict=True)]
    assert caps(mem="3", dev="15,16") == expected


def test_a_whole_gpu_may_be_asked_for() -> None:
    assert caps((T4,), mem="15", dev="15") == [T4.memory_bytes]


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


@pytest.mark.parametrize("mem", [{}, {"mem": ""}, {"mem": " "}])
@pytest.mark.parametrize("rest", [{"dev": "15"}, {"weight": "2"}, {"prio": "1"}])
def test_a_share_of_which_only_the_rest_is_set_is_refused(
    mem: dict[str, str], rest: dict[str, str]
) -> None:
    """ENV-9: whoever sets the rest wants a share, and would get the whole GPU."""
    [(name, value)] = rest.items()
    assert refusal(**mem, **rest) == (
        f"{SHORT[name]}={value}: it means nothing without ALIYUN_COM_GPU_MEM_CONTAINER, which is"
        " not set: set that to the GiB wanted of each GPU, or to 0 for a container without limits"
    )
    assert parse_request(env(**mem, **rest), FOUR, default_memsize=4096) is not None


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("ALIYUN_COM_GPU_MEM_CONTAINR", "ALIYUN_COM_GPU_MEM_CONTAINER"),
        ("ALIYUN_COM_GPU_MEM_CONTAINERS", "ALIYUN_COM_GPU_MEM_CONTAINER"),
        ("ALIYUN_COM_GPU_CONTAINER_MEM", "ALIYUN_COM_GPU_MEM_CONTAINER"),
        ("ALIYUN_COM_GPU_mem_container", "ALIYUN_COM_GPU_MEM_CONTAINER"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER ", "ALIYUN_COM_GPU_MEM_CONTAINER"),
        ("ALIYUN_COM_GPU_MEM_DEVICE", "ALIYUN_COM_GPU_MEM_DEV"),
        ("ALIYUN_COM_GPU_VISIBLE_DEVICE", "ALIYUN_COM_GPU_VISIBLE_DEVICES"),
        ("ALIYUN_COM_GPU_SCHED_WEIGHT", "ALIYUN_COM_GPU_SCHD_WEIGHT"),
        ("ALIYUN_COM_GPU_WEIGHT", "ALIYUN_COM_GPU_SCHD_WEIGHT"),
        ("ALIYUN_COM_GPU_HIGH_PRIORITY", "ALIYUN_COM_GPU_HIGH_PRIO"),
        ("ALIYUN_COM_GPU_MEM_ASSIGND", "ALIYUN_COM_GPU_MEM_ASSIGNED"),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"mem": "0"}, {"mem": "6", "dev": "15"}])
def test_a_misspelt_variable_is_refused_and_the_one_that_was_meant_named(
    misspelt: str, meant: str, beside: dict[str, str]
) -> None:
    """ENV-11."""
    values = {misspelt: "6", **env(**beside)}
    with pytest.raises(EnvError) as caught:
        is_asked(values)
    assert str(caught.value) == (
        f"{misspelt}=6: there is no such variable: did you mean {meant}?"
        " Take it out, or set CGPU_DISABLE=true for a container without cgpu"
    )
    assert not is_asked({**values, "CGPU_DISABLE": "true"})


def test_a_variable_that_is_like_none_is_refused_with_those_there_are() -> None:
    """ENV-11."""
    with pytest.raises(EnvError) as caught:
        is_asked({"ALIYUN_COM_GPU_\nXYZ" + "Q" * 5000: "9" * 5000})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 600
    assert all(name in message for name in SHORT.values() if name.startswith("ALIYUN"))


@pytest.mark.parametrize("name", sorted(PASSED_OVER))
def test_what_published_tools_set_besides_is_passed_over(name: str) -> None:
    """ENV-11: the variables that schedulers and device plugins of this ecosystem set."""
    assert not is_asked({name: "anything"})
    assert parse_request({**env(mem="6", dev="15"), name: ""}, FOUR) == parse(mem="6", dev="15")


def test_variables_with_other_beginnings_are_nobodys_business() -> None:
    """ENV-11."""
    assert not is_asked({"ALIYUN_COM_GPU": "6", "ALIYUN_REGION": "x", "XALIYUN_COM_GPU_MEM": "6"})


@pytest.mark.parametrize("mem", ["6GiB", "40%", "512MiB", "6/15"])
def test_a_containers_variable_has_no_units(mem: str) -> None:
    """ENV-2, ENV-9: it is cGPU's, in whole GiB."""
    for given in (env(mem=mem), env(mem=mem, dev="15")):
        with pytest.raises(EnvError, match=f"MEM_CONTAINER={mem}: expected whole GiB such as 6"):
            parse_request(given, FOUR)


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
    assert [share.memory_bytes for share in request.gpus] == [4096, 2048]


@pytest.mark.parametrize(("part", "bytes_"), [("40%", [6043, 400]), ("2/5", [6043, 400])])
def test_a_default_size_may_be_a_part_of_each_gpu(part: str, bytes_: list[int]) -> None:
    """ENV-4."""
    small = Gpu(1, "GPU-small", 1001 * MIB)
    request = parse_request({}, (T4, small), default_memsize=part)
    assert request is not None
    assert [share.memory_bytes // MIB for share in request.gpus] == bytes_
    assert is_asked({}, default_memsize=part)


def test_a_default_size_of_a_whole_that_is_far_off_is_said_by_its_name() -> None:
    """ENV-2, ENV-4."""
    request = parse_request({}, (T4,), default_memsize="6/80")
    assert request is not None
    assert request.notes == (
        "GPU 0 has 15109 MiB, not the 80 GiB of default_memsize=6/80: 6 of 80 is 1133 MiB",
    )


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


@pytest.mark.parametrize("value", ["", "yes", "no", "2", "on", "tru", "true,", "ｔｒｕｅ", "-1"])
def test_an_odd_disable_is_refused(value: str) -> None:
    """ENV-1, ENV-9."""
    assert refusal(disable=value, mem="3", dev="15").startswith(f"CGPU_DISABLE={value}: expected")


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


@pytest.mark.parametrize(
    "visible",
    [
        "", " ", "none", "void", ",", "0,", ",0", "0,,1", "4", "99999", "-1", "+1", "00", "01",
        "0x0", "0 1", "0;1", "0.", "all,0", "0,all", "ALL", "GPU-c", "GPU-aaaa1112", "aaaa",
        "GPU-", "GPU-aaaa", "１", "GPU-é", "1,1", "0,2,0", "0,GPU-aaaa1", "GPU-aaaa1,aaaa11",
        "MIG-aaaa1111", "all ,", "9" * 5000,
    ],
)  # fmt: skip
def test_a_bad_visible_list_is_refused(visible: str) -> None:
    """ENV-5, ENV-9."""
    assert refusal(mem="1", dev="15", visible=visible).startswith(SHORT["visible"] + "=")
    if visible.strip() not in {"", "none", "void"}:
        assert refusal(mem="1", dev="15", nvidia=visible).startswith(SHORT["nvidia"] + "=")


BAD_NUMBERS = [
    "abc", "-1", "+1", "1.5", "1,5.0", "1gb", "6GiB", "0x10", "1_0", "１", "1e1", "1 0", "01",
    "00", ",", "1,", ",1", "1,,1", "1;1", "1\u00a0", "1\x00", "٣", "²", "inf", "nan", "None",
    "1048577", "18446744073709551616", "9" * 5000, "true", "1,-1", "'1'", "1,a", "0,a", "\u20031",
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_a_bad_share_or_total_is_refused(value: str) -> None:
    """ENV-9, ENV-10."""
    assert refusal(mem=value, dev="15").startswith("ALIYUN_COM_GPU_MEM_CONTAINER=")
    assert refusal(mem="1", dev=value).startswith("ALIYUN_COM_GPU_MEM_DEV=")


@pytest.mark.parametrize("dev", ["", " ", "0", "15,0", "0,15"])
def test_a_total_of_nothing_is_refused(dev: str) -> None:
    """ENV-2, ENV-9."""
    message = refusal(mem="1", dev=dev)
    assert message == (
        f"ALIYUN_COM_GPU_MEM_DEV={dev}: expected whole GiB of at least 1 such as 6, "
        "or a comma list such as 3,1" + (" (at most 1048576)" if dev.strip() else "")
    )


@pytest.mark.parametrize("weight", [*BAD_NUMBERS, "", "0", "26", "1,1"])
def test_a_bad_weight_is_refused(weight: str) -> None:
    """ENV-6, ENV-9."""
    assert refusal(mem="1", dev="15", weight=weight).endswith(
        "expected a whole number from 1 to the GPU's max_inst, which is 20 by default and"
        " at most 25"
    )


@pytest.mark.parametrize("prio", [*BAD_NUMBERS, "", "2", "true", "false"])
def test_a_bad_priority_is_refused(prio: str) -> None:
    """ENV-7, ENV-9."""
    assert refusal(mem="1", dev="15", prio=prio).endswith("expected a whole number from 0 to 1")


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


@pytest.mark.parametrize("extra", [{"dev": "x"}, {"weight": "x"}, {"prio": "x"}, {"visible": ""}])
def test_a_bad_value_is_refused_even_where_no_share_is_asked_for(extra: dict[str, str]) -> None:
    """ENV-9: bad input never starts a container without limits."""
    refusal(**extra)
    refusal(mem="0", **extra)


def test_nvidias_variable_is_not_judged_where_cgpu_is_off() -> None:
    """ENV-4: the container gets the default NVIDIA path."""
    assert parse(nvidia="nvidia.com/gpu=all") is None


def test_more_shares_than_gpus_are_refused() -> None:
    """ENV-9."""
    assert refusal(mem="3,1", dev="15", visible="0") == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=3,1: 2 values, but 1 GPU is visible"
    )
    assert refusal(mem="1,1,1,1,1", dev="15").endswith("5 values, but 4 GPUs are visible")
    assert refusal(mem="1", dev="15,15,15", visible="0,1").startswith("ALIYUN_COM_GPU_MEM_DEV=")


def test_a_share_above_the_total_is_refused_on_any_gpu() -> None:
    """ENV-9."""
    assert refusal(mem="16", dev="15") == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=16: 16 GiB is more than the 15 GiB of ALIYUN_COM_GPU_MEM_DEV"
    )
    refusal(mem="15,15", dev="15,14")
    refusal(mem="1,16,1", dev="15")


def test_a_share_without_a_total_is_refused() -> None:
    """ENV-9."""
    assert refusal(mem="6").startswith("ALIYUN_COM_GPU_MEM_DEV is not set: ")


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    """ENV-5, ENV-9."""
    output = refusal(FOUR[:1], mem="6", dev="15", visible="7")
    assert output.endswith("=7: no GPU 7 here; this node has GPU 0")
    output = refusal(mem="6", dev="15", visible="0,GPU-f")
    assert output.endswith("=0,GPU-f: no GPU GPU-f here; this node has GPUs 0, 1, 2, 3")
    output = refusal(mem="6", dev="15", visible="0,GPU-")
    assert output.endswith("GPU- is the start of more than one UUID (GPUs 0, 1, 2, 3): write more")


def test_a_share_on_a_node_without_gpus_is_refused() -> None:
    """ENV-9."""
    assert refusal((), mem="6", dev="15").endswith("this node has no GPU")


def test_the_message_names_variable_value_and_what_is_allowed() -> None:
    """ENV-9."""
    assert refusal(mem="abc", dev="15") == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=abc: "
        "expected whole GiB such as 6, or a comma list such as 3,1"
    )


def test_a_message_is_one_short_line_whatever_the_value() -> None:
    """ENV-9."""
    message = refusal(mem="1\n2\x1b[31m" + "9" * 100000, dev="15")
    assert "\n" not in message
    assert len(message) < 250


def test_white_space_around_values_and_items_is_accepted() -> None:
    """ENV-10."""
    assert caps(mem=" 3 ,\t1 ", dev="\t15\n") == caps(mem="3,1", dev="15")


def test_of_duplicate_variables_the_last_wins() -> None:
    assert environment(["A=1", "B=x=y", "A=2", "C", "D="]) == {
        "A": "2",
        "B": "x=y",
        "C": "",
        "D": "",
    }


@pytest.mark.parametrize("entry", [1, None, ["A=1"], {"A": "1"}])
def test_an_environment_of_other_things_than_strings_is_refused(entry: object) -> None:
    with pytest.raises(EnvError, match=r"process\.env"):
        environment(["A=1", entry])  # type: ignore[list-item]


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
        request_module.parse(env(**named), default)
    assert not asked
    found = request_module.parse({}, default)
    assert found is not None
    assert (found.default_memsize, asked) == (4096, [4096])


def test_shares_carry_index_and_uuid_in_visible_order() -> None:
    """CLI-7 depends on the order."""
    request = parse(mem="3,1", dev="15", visible="1,0")
    assert request == Request(
        (
            GpuShare(1, P100.uuid, P100.memory_bytes * 3 // 15),
            GpuShare(0, T4.uuid, T4.memory_bytes // 15),
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
