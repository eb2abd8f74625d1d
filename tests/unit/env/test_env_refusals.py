"""What a container's environment may not say, and the sentence that refuses it (ENV-1..12)."""

# ruff: noqa: RUF001  (look-alike digits and letters are what is tested)
from __future__ import annotations

import pytest

from cgpu_env import EnvError, Gpu, parse_environment
from cgpu_env.request import parse_variables, without_size
from lab.shares.asked import FOUR, P100, SHORT, T4, caps, env, is_asked, parse_request, refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("mem", [{}, {"mem": ""}, {"mem": " "}])
@pytest.mark.parametrize("rest", [{"dev": "15"}, {"weight": "2"}, {"prio": "1"}])
def test_without_a_size_cgpu_is_off_whatever_else_is_set(
    mem: dict[str, str], rest: dict[str, str]
) -> None:
    """ENV-4: with a warning, for the size may have been forgotten."""
    [(name, value)] = rest.items()
    given = env(**mem, **rest)
    assert not is_asked(given)
    assert without_size(given) == (
        f"{SHORT[name]}={value} has no effect without ALIYUN_COM_GPU_MEM_CONTAINER, which is"
        f" {'empty' if mem else 'not set'}: cgpu is off for the container"
    )
    assert parse_request(given, FOUR, default_memsize=4096) is not None


@pytest.mark.parametrize("rest", [{"dev": "x"}, {"weight": "0"}, {"prio": "2"}])
def test_without_a_size_the_rest_must_be_well_formed_all_the_same(rest: dict[str, str]) -> None:
    """ENV-9."""
    [(name, value)] = rest.items()
    assert refusal(**rest).startswith(f"{SHORT[name]}={value}: expected ")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"visible": "0"},
        {"dev": "15", "mem": "0"},
        {"dev": "15", "mem": "6"},
        {"dev": "15", "disable": "true"},
        {"dev": "15", "disable": " 1"},
    ],
)
def test_nobody_is_warned_of_what_is_meant(given: dict[str, str]) -> None:
    """ENV-4: of no share at all, of a share, and of cgpu switched off."""
    assert without_size(env(**given)) is None


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CGPU_DISABLED", "did you mean CGPU_DISABLE?"),
        ("CGPU_disable", "did you mean CGPU_DISABLE?"),
        ("CGPU_SCHD_WEIGHT", "did you mean ALIYUN_COM_GPU_SCHD_WEIGHT?"),
        ("CGPU_POLICY", "the policy is a GPU's, which cgpu set changes."),
    ],
)
def test_a_variable_of_ours_that_there_is_not_is_refused_beside_a_share(
    name: str, meant: str
) -> None:
    """ENV-11: a container without a share is left alone, for its image may use such a name."""
    share = env(mem="6", dev="15")
    with pytest.raises(EnvError) as caught:
        is_asked({**share, name: "true"})
    assert str(caught.value).startswith(f"{name}=true: there is no such variable: {meant}")
    assert not is_asked({name: "true"})
    with pytest.raises(EnvError):
        parse_request({name: "true"}, FOUR, default_memsize=4096)
    known = {"CGPU_LOG": "off", "CGPU_SIM_TAG": "6", "CGPU_STATE_DIR": "/x"}
    service = {"CGPU_GUARD_SERVICE_HOST": "10.0.0.1", "CGPU_GUARD_PORT_443_TCP": "tcp://10.0.0.1"}
    others = {"CGPU_PORT": "tcp://10.0.0.1", "CGPU_COUNT": "1", "CGPU_GROUP": "a", "CGPU_POD": "b"}
    assert is_asked({**share, **known, **service, **others})


def test_a_variable_that_is_like_none_is_refused_with_those_there_are() -> None:
    """ENV-11."""
    with pytest.raises(EnvError) as caught:
        is_asked({"ALIYUN_COM_GPU_\nXYZ" + "Q" * 5000: "9" * 5000})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 600
    assert all(name in message for name in SHORT.values() if name.startswith("ALIYUN"))


@pytest.mark.parametrize("mem", ["6GiB", "40%", "512MiB", "6/15"])
def test_a_containers_variable_has_no_units(mem: str) -> None:
    """ENV-2, ENV-9: it is cGPU's, in whole GiB."""
    for given in (env(mem=mem), env(mem=mem, dev="15")):
        with pytest.raises(EnvError, match=f"MEM_CONTAINER={mem}: expected whole GiB such as 6"):
            parse_request(given, FOUR)


@pytest.mark.parametrize("value", ["", "yes", "no", "2", "on", "tru", "true,", "ｔｒｕｅ", "-1"])
def test_an_odd_disable_is_refused(value: str) -> None:
    """ENV-1, ENV-9."""
    assert refusal(disable=value, mem="3", dev="15").startswith(f"CGPU_DISABLE={value}: expected")


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


@pytest.mark.parametrize("extra", [{"dev": "x"}, {"weight": "x"}, {"prio": "x"}, {"visible": ""}])
def test_a_bad_value_is_refused_even_where_no_share_is_asked_for(extra: dict[str, str]) -> None:
    """ENV-9: bad input never starts a container without limits."""
    refusal(**extra)
    refusal(mem="0", **extra)


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


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"CGPU_DISABLE": "true"}, "CGPU_DISABLE=true"),
        ({"CGPU_DISABLE": " 1 ", "ALIYUN_COM_GPU_MEM_CONTAINR": "6"}, "CGPU_DISABLE= 1 "),
        (env(mem="0"), "ALIYUN_COM_GPU_MEM_CONTAINER=0"),
        (env(mem="6,0"), "ALIYUN_COM_GPU_MEM_CONTAINER=6,0"),
    ],
)
def test_env_12_off_is_refused_where_the_node_forbids_it(
    given: dict[str, str], written: str
) -> None:
    """ENV-12: an image may say it, and its variables look like a user's."""
    assert parse_variables(given, lambda: 4096) is None
    with pytest.raises(EnvError) as refusal:
        parse_variables(given, lambda: 4096, allow_off=False)
    assert (
        str(refusal.value) == f"{written}: this node lets no container switch cgpu off (allow_off)"
    )


@pytest.mark.parametrize(
    "given", [{}, {"CGPU_DISABLE": "false"}, env(mem="6"), env(mem="6", dev="15")]
)
def test_env_12_what_is_not_off_is_as_before(given: dict[str, str]) -> None:
    assert parse_variables(given, lambda: 4096, allow_off=False) == parse_variables(
        given, lambda: 4096
    )
    assert parse_variables({}, lambda: 0, allow_off=False) is None


@pytest.mark.parametrize("entry", [1, None, ["A=1"], {"A": "1"}])
def test_an_environment_of_other_things_than_strings_is_refused(entry: object) -> None:
    with pytest.raises(EnvError, match=r"process\.env"):
        parse_environment(["A=1", entry])  # type: ignore[list-item]


WHY = "GPU is lost (error 15); reboot"
LOST = P100._replace(lost=WHY)
NAMELESS = Gpu(1, "", 0, WHY)


@pytest.mark.parametrize("more", [{}, {"visible": "all"}, {"nvidia": "all"}])
def test_rel_10_whoever_names_no_gpu_gets_those_that_answer(more: dict[str, str]) -> None:
    assert len(caps((T4, LOST, FOUR[2]), mem="3", dev="15", **more)) == 2


@pytest.mark.parametrize("word", ["1", P100.uuid, "GPU-aaaa2"])
def test_rel_10_whoever_names_a_lost_gpu_is_refused(word: str) -> None:
    sentence = f"GPU 1 ({P100.uuid}) does not answer: {WHY}"
    name = SHORT["visible"]
    assert refusal((T4, LOST), mem="3", dev="15", visible=word) == f"{name}={word}: {sentence}"


def test_rel_10_a_gpu_that_nobody_knows_may_be_one_that_is_lost() -> None:
    assert refusal((T4, NAMELESS), mem="3", dev="15", visible="GPU-f") == (
        f"{SHORT['visible']}=GPU-f: no GPU GPU-f here; this node has GPUs 0, 1;"
        f" GPU 1 does not answer: {WHY}"
    )


@pytest.mark.parametrize("more", [{}, {"visible": "all"}])
def test_rel_10_where_none_answers_a_share_is_refused(more: dict[str, str]) -> None:
    """REL-10: without its cap the container could have the GPU that is back."""
    sentence = refusal((NAMELESS, LOST), mem="3", dev="15", **more)
    assert sentence == f"no GPU of this node can be used: GPU 1 does not answer: {WHY}"
    with pytest.raises(EnvError, match="no GPU of this node can be used"):
        parse_request({}, (LOST,), default_memsize=4096)
    assert parse_request(env(nvidia="none"), (LOST,), default_memsize=4096) is None
