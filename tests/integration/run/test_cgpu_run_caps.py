"""The cap of a session holds, whichever way a program takes to the driver (REL-6, MEM-2)."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_sim import make_driver_dir
from cgpu_sim.machine import TESLA_T4
from lab.runs.packages import ensure_packages
from lab.worlds.cgpu_run import CAP_NINE, CAP_SIX, FILL, NOBODY, World, become_nobody
from lab.worlds.server import wait_until

pytestmark = pytest.mark.integration

OUT_OF_MEMORY = 2
CONTEXT = 105  # MiB; what a context costs on the simulated T4
SIX = ("--mem", "6/15")
PYTHON = (sys.executable, "-I")


@pytest.fixture(params=["root", "user"])
def world(request: pytest.FixtureRequest) -> World:
    return World(root=request.param == "root")


def check_capped(answer: dict[str, int], cap: int = CAP_SIX) -> None:
    """A program was shown the cap, and got all of it and no more."""
    assert answer["total"] == cap
    assert answer["status"] == OUT_OF_MEMORY
    assert answer["got"] == cap - CONTEXT


def test_a_program_sees_and_gets_its_share_and_no_more(world: World) -> None:
    """MEM-2, MEM-4, CLI-2."""
    check_capped(world.fill(how="soname"))


@pytest.mark.parametrize(
    ("mem", "cap"), [("6GiB", 6144), ("512MiB", 512), ("40%", 6043), ("1048576000", 1000)]
)
def test_a_share_may_have_a_unit(mem: str, cap: int) -> None:
    """CLI-2, MEM-2."""
    answer = World().fill(flags=("--mem", mem))
    assert (answer["total"], answer["status"]) == (cap, OUT_OF_MEMORY)
    assert answer["got"] <= cap - CONTEXT


@pytest.mark.parametrize(
    ("mem", "sentence"),
    [
        ("2GB", "there is no unit GB: expected from 1MiB to 15109MiB, such as 6GiB, 512MiB, 40%"),
        ("6", "expected from 1MiB to 15109MiB, such as 6GiB, 512MiB, 40% or 6/15 of the GPU;"),
        ("10GiB", "10240 MiB asked on GPU 0, where 9065 of 15109 MiB are free"),
    ],
)
def test_a_refused_size_is_repeated_as_it_was_typed(mem: str, sentence: str) -> None:
    """ENV-9."""
    world = World()
    beside = world.start(*SIX, "--", "sleep", "60")
    try:
        wait_until(lambda: len(world.sessions()) == 1, "it is admitted")
        done = world.run("--mem", mem, "--", "true")
    finally:
        beside.kill()
        beside.communicate()
    assert done.returncode == 2
    assert done.stderr.startswith(f"cgpu-run: --mem {mem}: {sentence}")


@pytest.mark.parametrize("how", ["path", "link", "dlmopen"])
def test_no_way_to_load_the_driver_escapes(world: World, how: str) -> None:
    """REL-6."""
    check_capped(world.fill(how=how))


@pytest.mark.parametrize(
    "words",
    [
        ["env", "-i"],
        ["env", "-u", "LD_LIBRARY_PATH"],
        ["env", "LD_LIBRARY_PATH={driver}"],
        ["env", "LD_LIBRARY_PATH=/nowhere:{driver}", "LD_PRELOAD={driver}/libcuda.so.1"],
        ["env", "-u", "CUDA_VISIBLE_DEVICES"],
        ["env", "CUDA_VISIBLE_DEVICES=0"],
        ["setsid", "-w"],
        ["sh", "-c", 'exec "$@"', "sh"],
        ["chroot", "/proc/self/root"],
    ],
    ids=" ".join,
)
def test_no_change_of_the_environment_escapes(world: World, words: list[str]) -> None:
    """REL-6."""
    if words[0] == "chroot" and not world.root:
        words = ["unshare", "-Ur", *words]
    check_capped(world.fill(*(word.format(driver=world.driver) for word in words)))


def bring(world: World, folder: Path) -> Path:
    """Another driver, with its links, as a toolkit or an environment of Python packages has it."""
    make_driver_dir(folder, [TESLA_T4])
    (folder / "libcuda.so.1").rename(folder / "libcuda.so.550.54.15")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    if not world.root:
        subprocess.run(["chown", "-R", str(NOBODY), folder], check=True)
    return folder


@pytest.mark.parametrize("given", ["LD_LIBRARY_PATH", "LD_PRELOAD", "relative"])
def test_a_driver_of_another_place_on_the_path_does_not_escape(world: World, given: str) -> None:
    """REL-6."""
    brought = bring(world, world.folder / "brought")
    entries = {
        "LD_LIBRARY_PATH": {"LD_LIBRARY_PATH": f"/nowhere:{brought}"},
        "LD_PRELOAD": {"LD_PRELOAD": f"{brought}/libcuda.so.1"},
        "relative": {"LD_LIBRARY_PATH": "../brought"},
    }[given]
    words = [f"{name}={text}" for name, text in entries.items()]
    env = world.environment(**entries)
    check_capped(world.fill("env", *words, how="soname", cwd=world.driver, env=env))


@pytest.mark.parametrize("found", ["cache", "compat"])
def test_a_driver_that_the_machine_brings_does_not_escape(found: str) -> None:
    """REL-6: the toolkit's compatibility driver, and whatever the loader's cache names."""
    world = World()
    brought = bring(world, world.folder / "brought")
    compat = "/usr/local/cuda-12.4/compat/lib.real"
    (world.folder / "conf").write_text(f"{brought}\n")
    script = {
        "cache": f"ldconfig -C {world.folder}/new -f {world.folder}/conf && "
        f"mount --bind {world.folder}/new /etc/ld.so.cache",
        "compat": f"mount -t tmpfs none /usr/local && mkdir -p {compat} && "
        f"mount --bind {brought} {compat}",
    }[found]
    path = {"cache": "", "compat": f"LD_LIBRARY_PATH={compat}"}[found]
    command = world.command(
        *world.flags(), *SIX, "--", "env", "-i", *filter(None, [path]), *PYTHON, FILL,
        world.driver, "soname",
    )  # fmt: skip
    done = world.run_command(["unshare", "-m", "sh", "-c", f'{script} && "$@"', "sh", *command])
    assert done.returncode == 0, done
    check_capped(json.loads(done.stdout))


def test_another_user_of_a_session_does_not_escape() -> None:
    """REL-6: as after su."""
    world = World()
    script = become_nobody([sys.executable, "-I", str(FILL), str(world.driver)])
    done = world.run(*SIX, "--", "sh", "-c", script)
    answer = json.loads(done.stdout)
    assert answer["uid"] == NOBODY
    check_capped(answer)


def test_a_static_program_runs_and_what_it_starts_is_capped(
    world: World, static_launcher: Path
) -> None:
    """REL-6."""
    program = shutil.copy(static_launcher, world.folder)
    check_capped(world.fill(program))


@pytest.fixture(scope="session")
def static_launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static musl program that starts its arguments with an empty environment."""
    folder = tmp_path_factory.mktemp("static")
    source = folder / "launcher.c"
    source.write_text(
        "#include <unistd.h>\n"
        "int main(int n, char **v) { char *none[] = {0}; (void)n; execve(v[1], v + 1, none);"
        " return 1; }\n"
    )
    ensure_packages()  # zig would have to compile musl first
    subprocess.run(["musl-gcc", "-static", "-o", folder / "launcher", source], check=True)
    return folder / "launcher"


def test_two_sessions_share_a_gpu_and_do_not_meet(world: World) -> None:
    """MEM-1, MEM-2."""
    six = world.start(*SIX, "--", *PYTHON, FILL, world.driver, "soname", "1", "keep")
    nine = world.start("--mem", "9/15", "--", *PYTHON, FILL, world.driver, "soname", "1", "keep")
    for process, cap in ((six, CAP_SIX), (nine, CAP_NINE)):
        assert process.stdout is not None
        check_capped(json.loads(process.stdout.readline()), cap)
    listed = world.smi()
    assert [c["gpus"][0]["used_bytes"] >> 20 for c in listed["containers"]] in (
        [CAP_SIX, CAP_NINE],
        [CAP_NINE, CAP_SIX],
    )
    for process in (six, nine):
        process.communicate("")
    world.wait_until_empty()


def test_what_a_killed_process_held_is_free_at_once_for_the_others(world: World) -> None:
    """MEM-7, REL-3."""
    program = f"{sys.executable} -I {FILL} {world.driver} soname 1"
    done = world.run(*SIX, "--", "sh", "-c", f"{program} die; {program}")
    killed, after = (json.loads(line) for line in done.stdout.splitlines())
    check_capped(killed)
    check_capped(after)


def test_processes_of_a_session_share_its_cap(world: World) -> None:
    """MEM-6: four programs race for one cap; together they get all of it, in blocks of 2 MiB."""
    done = world.run(*SIX, "--", *PYTHON, FILL, world.driver, "soname", "4")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == [OUT_OF_MEMORY] * 4
    assert sum(answer["got"] for answer in answers) == (CAP_SIX - 4 * CONTEXT) // 2 * 2


def test_a_list_gives_each_visible_gpu_its_own_cap(world: World) -> None:
    """ENV-3, ENV-5: the order is that of the visible list."""
    world = World(root=world.root, gpus=3)
    flags = ("--mem", "6,9/15", "--gpus", "2,0")
    check_capped(world.fill(how="soname", flags=flags))
    uuid = world.smi()["gpus"][0]["uuid"]
    only = world.fill("env", f"CUDA_VISIBLE_DEVICES={uuid}", how="soname", flags=flags)
    check_capped(only, CAP_NINE)
    assert world.fill(how="soname", flags=flags)["gpus"] == 2


def test_without_namespaces_the_library_path_caps_and_a_warning_says_what_it_does_not(
    world: World,
) -> None:
    """REL-6."""
    done = world.run("--no-namespaces", *SIX, "--", *PYTHON, FILL, world.driver, "soname")
    check_capped(json.loads(done.stdout))
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("cgpu-run")]
    assert warning == (
        "cgpu-run: warning: without namespaces, so the cap holds only while the program finds"
        " libcuda.so.1 by LD_LIBRARY_PATH: not with a cleared environment, an absolute path or a"
        " set-uid program"
    )
    world.wait_until_empty()


def test_where_user_namespaces_are_off_the_library_path_is_used() -> None:
    """REL-6: the kernel's own refusal, not our flag."""
    world = World(root=False)
    program = [*PYTHON, str(FILL), str(world.driver), "soname"]
    words = world.cgpu_run("--state-dir", world.state, *SIX, "--", *program)
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all "$@"'
    command = ["unshare", "-Ur", "--", "sh", "-c", script, "sh", *words]
    done = world.run_command(world.as_user(command))
    check_capped(json.loads(done.stdout))
    assert "warning: no mount namespace here (No space left on device)" in done.stderr


INSTALL = """
set -e
system=/usr/lib/$(uname -m)-linux-gnu driver=$1; shift
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir -p /opt/upper/nvidia/current /opt/work
cp -a "$driver"/* /opt/upper
cd /opt/upper
for name in libcuda.so libnvidia-ml.so; do
    mv $name.1 nvidia/current/$name.550.163.01
    ln -s $name.550.163.01 nvidia/current/$name.1
    ln -s $system/nvidia/current/$name.1 $name.1
done
layers=lowerdir=$system,upperdir=/opt/upper,workdir=/opt/work
mount -t overlay overlay -o $layers $system
cd /
exec "$@"
"""


@pytest.mark.parametrize("escape", ["nothing", "env -i", "su"])
@pytest.mark.parametrize("how", ["soname", "path"])
def test_a_driver_installed_as_debian_does_it_is_found_and_covered(how: str, escape: str) -> None:
    """REL-6, CLI-8: absolute links through alternatives, and no --driver-dir anywhere."""
    world = World()
    system = f"/usr/lib/{platform.machine()}-linux-gnu"
    fill = [sys.executable, "-I", str(FILL), system, how]
    words = {
        "nothing": fill,
        "env -i": ["env", "-i", *fill],
        "su": ["sh", "-c", become_nobody(fill)],
    }[escape]
    done = world.run_command([*installed(world), *words])
    assert done.returncode == 0, done.stderr
    check_capped(json.loads(done.stdout))


def test_a_driver_in_a_usual_place_needs_no_library_path() -> None:
    world = World()
    shown = world.run_command([*installed(world), "env"]).stdout
    assert "CUDA_VISIBLE_DEVICES" in shown
    assert "LD_LIBRARY_PATH" not in shown


def installed(world: World) -> list[str]:
    """The words that start ``cgpu-run`` on a machine with the world's driver installed."""
    run = [sys.executable, "-m", "cgpu_cli.run", *world.flags(), *SIX, "--"]
    return ["unshare", "-m", "sh", "-c", INSTALL, "sh", str(world.driver), *run]
