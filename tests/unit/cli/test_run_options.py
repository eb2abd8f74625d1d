"""The command line of cgpu-run, and its refusals in its own words (CLI-2)."""

from __future__ import annotations

import pytest

from cgpu_cli.running.options import Options, parse, to_variables, translate_message
from cgpu_env import CgpuError, Gpu, parse_request, request
from cgpu_env.request import Asked, wanted_of
from cgpu_env.values import BYTES
from cgpu_node.settings import rules

pytestmark = pytest.mark.unit

MIB = 1 << 20
POLICIES = rules.format_allowed("policy")
EXAMPLES = "6GiB, 512MiB, 40% or 6/15 of the GPU"
GPUS = [Gpu(i, f"GPU-0000000{i}-1111-2222-3333-444444444444", 15109 * MIB) for i in range(4)]


def refusal(*arguments: str, gpus: list[Gpu] = GPUS) -> str:
    """The sentence with which a command line is refused, wherever that happens."""
    try:
        options = parse([*arguments, "--", "true"])
    except CgpuError as error:
        return str(error)
    try:
        parse_request(to_variables(options), gpus, has_units=True)
    except CgpuError as error:
        return translate_message(str(error), options)
    raise AssertionError("not refused")


def asked_of(options: Options) -> Asked:
    asked = request.parse_variables(to_variables(options), lambda: 0, has_units=True)
    assert asked is not None
    return asked


def test_options_become_the_variables_of_a_container() -> None:
    words = ["--mem", "3,1/15", "--weight", "4", "--high-prio", "--gpus", "1,0"]
    words += ["--", "prog", "--mem", "x"]
    options = parse(words)
    assert to_variables(options) == {
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3,1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_SCHD_WEIGHT": "4",
        "ALIYUN_COM_GPU_HIGH_PRIO": "1",
        "ALIYUN_COM_GPU_VISIBLE_DEVICES": "1,0",
    }
    assert options.program == ["prog", "--mem", "x"]


@pytest.mark.parametrize(
    ("mem", "sizes"),
    [
        ("6/15", [15109 * MIB * 6 // 15] * 2),
        ("6GiB", [6 << 30] * 2),
        ("512MiB,6GiB", [512 * MIB, 6 << 30]),
        ("40%", [15109 * MIB * 2 // 5] * 2),
        ("100%, 1048576", [15109 * MIB, MIB]),
        ("6GiB,6/15", [6 << 30, 15109 * MIB * 6 // 15]),
        ("6/15, 40%", [15109 * MIB * 6 // 15, 15109 * MIB * 2 // 5]),
        ("1/15,8/16", [15109 * MIB // 15, 15109 * MIB // 2]),
        ("3,1/15", [15109 * MIB * 3 // 15, 15109 * MIB // 15]),
        ("3/15,16", [15109 * MIB * 3 // 15, 15109 * MIB * 3 // 16]),
    ],
)
def test_a_share_of_memory_has_the_units_that_people_type(mem: str, sizes: list[int]) -> None:
    """CLI-2: on each GPU, in the order in which they are named; the last size repeats."""
    asked = to_variables(parse(["--mem", mem, "--gpus", "2,0", "true"]))
    request = parse_request(asked, GPUS, has_units=True)
    assert request is not None
    assert [(gpu.index, gpu.cap_bytes) for gpu in request.gpus] == [
        *zip((2, 0), sizes, strict=True)
    ]
    assert request.notes == ()


def test_a_whole_that_is_far_off_is_said_of_the_gpu_that_has_it() -> None:
    """ENV-2, CLI-2: with what was typed."""
    request = parse_request(to_variables(parse(["--mem=6GiB,6/80", "x"])), GPUS[:2], has_units=True)
    assert request is not None
    assert request.notes == (
        "GPU 1 has 15109 MiB, not the 80 GiB of --mem 6GiB,6/80: 6 of 80 is 1133 MiB",
    )


def test_the_program_begins_at_the_first_word_that_is_no_option() -> None:
    assert parse(["--mem=6/15", "prog", "--weight", "2"]).program == ["prog", "--weight", "2"]
    assert parse(["--mem=6/15", "--", "--weight"]).program == ["--weight"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--mem 6", f"--mem 6: expected from 1MiB to 15109MiB, such as {EXAMPLES}; {BYTES}"),
        ("--mem 2GB", "--mem 2GB: there is no unit GB: expected from 1MiB to 15109MiB, such as"),
        ("--mem 6GiB,2gib", "--mem 6GiB,2gib: there is no unit gib: expected from 1MiB to"),
        ("--mem 1.5GiB", "--mem 1.5GiB: 1.5 is not a whole number: expected from 1MiB to 15109MiB"),
        ("--mem 16GiB", "--mem 16GiB: GPU 0 has 15109MiB: expected from 1MiB to 15109MiB"),
        ("--mem 6GB,6/15", "--mem 6GB,6/15: there is no unit GB: expected from 1MiB to 15109MiB"),
        (
            "--mem 6GiB,20/15",
            "--mem 6GiB,20/15: GPU 1 has 15109MiB: expected from 1MiB to 15109MiB, such as 6GiB",
        ),
        (
            "--mem 6GiB,6",
            f"--mem 6GiB,6: expected from 1MiB to 15109MiB, such as {EXAMPLES}; {BYTES}",
        ),
        ("--mem 3,x/15", "--mem 3,x/15: expected whole GiB such as 6, or a comma list such as 3,1"),
        ("--mem 0%", "--mem 0%: expected from 1MiB to 15109MiB"),
        ("--mem 6GiB,", "--mem 6GiB,: expected from 1MiB to 15109MiB"),
        ("--mem 40%/15", "--mem 40%/15: expected whole GiB such as 6"),
        ("--mem 6/15GiB", "--mem 6/15GiB, after the slash: expected whole GiB of at least 1 such"),
        ("--mem 6/0", "--mem 6/0, after the slash: expected whole GiB of at least 1 such as 6"),
        ("--mem 1%,2%,3%,4%,5%", "--mem 1%,2%,3%,4%,5%: 5 values, but 4 GPUs are visible"),
        ("--mem 16/15", "--mem 16/15: 16 GiB is more than the 15 GiB given as the whole"),
        ("--mem x/15", "--mem x/15: expected whole GiB such as 6, or a comma list such as 3,1"),
        ("--mem 6/-15", "--mem 6/-15, after the slash: expected whole GiB of at least 1 such as"),
        ("--mem 1,2,3,4,5/15", "--mem 1,2,3,4,5/15: 5 values, but 4 GPUs are visible"),
        ("--mem 6/15/2", "--mem 6/15/2, after the slash: expected whole GiB"),
        (
            "--mem 6/15 --weight 0",
            "--weight 0: expected a whole number from 1 to the GPU's max_inst",
        ),
        (
            "--mem 6/15 --weight=26",
            "--weight 26: expected a whole number from 1 to the GPU's max_inst",
        ),
        ("--mem 6/15 --gpus 7", "--gpus 7: no GPU 7 here; this node has GPUs 0, 1, 2, 3"),
        ("--mem 6/15 --gpus 1,1", "--gpus 1,1: 1 names GPU 1 a second time"),
        (
            "--mem 6/15 --policy 99",
            f"--policy 99: expected {POLICIES}",
        ),
        ("--mem 6/15 --policy 01", f"--policy 01: expected {POLICIES}"),
        ("--mem 6/15 --policy fare", f"--policy fare: expected {POLICIES}"),
        ("--mem 6/15 --policy fixd", f"--policy fixd: expected {POLICIES}: did you mean fixed?"),
        ("--mem 6/15 --policy=", "--policy: the value is empty"),
        ("--memory 6/15", "unknown option --memory: did you mean --mem?"),
        ("--mem 6/15 --wieght=2", "unknown option --wieght=2: did you mean --weight?"),
        ("--driverdir /x --mem 6/15", "unknown option --driverdir: did you mean --driver-dir?"),
        ("--colour 6/15", "unknown option --colour"),
        ("-m 6/15", "unknown option -m"),
        ("--high-prio=1 --mem 6/15", "--high-prio=1: expected --high-prio alone, without a value"),
        ("-high-prio --mem 6/15", "unknown option -high-prio: did you mean --high-prio?"),
        ("--gpus= --mem 6/15", "--gpus: the value is empty"),
        ("--driver-dir --mem 6/15", "--driver-dir: a value is missing"),
        ("--mem 6/15 --weight --policy=3", "--weight: a value is missing"),
        ("--mem 6/15 --gpus", "--gpus: a value is missing"),
        ("--weight 2", "--mem is missing"),
        ("--mem \x1b[31m", "--mem \\x1b[31m: expected from 1MiB"),
    ],
)
def test_a_refusal_names_the_option_the_value_and_what_is_allowed(
    arguments: str, sentence: str
) -> None:
    """ENV-9."""
    text = refusal(*arguments.split(" "))
    assert text.startswith(sentence)
    assert "ALIYUN" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("mem", "meant"),
    [
        *((word, "6GiB") for word in ("6", "6Gi", "6GB", "6g", "6gib", "6 GiB")),
        ("512", "512MiB"),
        ("512MB", "512MiB"),
        ("6GB,6/15", "6GiB,6/15"),
        ("6GiB,3GB", "6GiB,3GiB"),
        *((word, "") for word in ("0", "16GiB", "60GB", "20000", "6TB", "6Hz", "1.5GiB", "120%")),
    ],
)
def test_a_size_with_a_wrong_unit_is_refused_with_the_one_that_was_probably_meant(
    mem: str, meant: str
) -> None:
    assert refusal("--mem", mem).partition(": did you mean ")[2] == (meant and f"{meant}?")


def test_the_gpu_that_is_too_small_is_named() -> None:
    """ENV-9: a T4 beside an A10."""
    gpus = [GPUS[0], GPUS[1]._replace(total_bytes=23028 * MIB)]
    for words in (["--mem", "20GiB"], ["--mem", "6GiB,20GiB", "--gpus", "1,0"]):
        what = f"--mem {words[1]}: GPU 0 has 15109MiB: expected from 1MiB to 15109MiB, such as"
        assert refusal(*words, gpus=gpus).startswith(what)


@pytest.mark.parametrize(
    ("mem", "sentence"),
    [
        ("99/15", "99 GiB is more than the 15 GiB given as the whole"),
        ("6GiB,99/15", "2 values, but no GPU is visible"),
        ("6,3/15", "2 values, but no GPU is visible"),
        ("6/15,16", "2 values, but no GPU is visible"),
        ("6,/15", "expected whole GiB such as 6, or a comma list such as 3,1"),
        ("0%", "expected from 1MiB to all of a GPU, such as"),
        ("6GB", "there is no unit GB: expected from 1MiB to all of a GPU, such as"),
        ("6", "expected from 1MiB to all of a GPU, such as"),
    ],
)
def test_what_no_gpu_could_give_is_refused_where_none_is_visible(mem: str, sentence: str) -> None:
    """ENV-9, ENV-13."""
    options = parse(["--mem", mem, "true"])
    with pytest.raises(CgpuError) as refused:
        wanted_of(asked_of(options), ())
    assert sentence in translate_message(str(refused.value), options)


def test_sizes_that_some_gpu_could_give_need_none() -> None:
    """ENV-13."""
    for mem in ("500GiB", "6/15", "100%"):
        assert len(wanted_of(asked_of(parse(["--mem", mem, "true"])), ())) == 1


def test_a_weight_that_was_left_out_is_called_by_its_option() -> None:
    """SCH-10."""
    text = "its containers have all of it, and one without ALIYUN_COM_GPU_SCHD_WEIGHT needs 1"
    assert translate_message(text, parse(["--mem=6/15", "true"])).endswith(
        "one without --weight needs 1"
    )


@pytest.mark.parametrize("words", [["--mem"], ["--mem", "6/15"], ["--mem", "6/15", "--"], []])
def test_an_incomplete_command_line_is_refused(words: list[str]) -> None:
    with pytest.raises(CgpuError, match=r"missing|no program"):
        parse(words)


def test_help_needs_nothing_else() -> None:
    assert "--mem SIZE" in (parse(["--help"]).answer or "")
