"""What an installation consists of: every module, every product of the build, the licence."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from lab.containers import images
from lab.products import distribution, products

# Packages are built first.
pytestmark = [pytest.mark.integration, pytest.mark.exact, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests" / "programs" / "other_processor.py"
PACKAGES = {
    "cgpu_env": "cgpu_env",
    "cgpu_native": "native/cgpu_native",
    "cgpu_shim": "shim/cgpu_shim",
    "cgpu_node": "node/cgpu_node",
    "cgpu_hook": "hook/cgpu_hook",
    "cgpu_entry": "cli/cgpu_entry",
    "cgpu_cli": "cli/cgpu_cli",
    "cgpu_install": "cli/cgpu_install",
    "cgpu_upgrade": "cli/cgpu_upgrade",
    "cgpu_doctor": "cli/cgpu_doctor",
    "cgpu_server": "server/cgpu_server",
    "cgpu_k8s": "k8s/cgpu_k8s",
    "cgpu_sim": "tests/sim/cgpu_sim",
}
PROGRAMS = {f"cgpu_hook/_bin/cgpu-{name}" for name in ("runtime", "hook", "python")}
LIBRARIES = {
    f"{package}/_lib/{name}"
    for package in ("cgpu_shim", "cgpu_sim")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1")
}


# PEP 599, as far as anything of ours needs it.
MANYLINUX2014 = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
GLIBC = (2, 17)
ELF_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


@pytest.fixture(params=distribution.MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(machine: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(distribution.wheel(machine))


def test_a_wheel_serves_every_python_and_distribution(machine: str) -> None:
    name = distribution.wheel(machine).name
    assert name.endswith(f"-cp310-abi3-manylinux2014_{machine}.whl")


def test_binaries_need_nothing_that_their_tag_does_not_promise(
    wheel: zipfile.ZipFile, machine: str
) -> None:
    for name, content in _binaries(wheel).items():
        elf = ELFFile(io.BytesIO(content))
        assert elf["e_machine"] == ELF_MACHINES[machine], name
        assert _newest_glibc(elf) <= GLIBC, name
        tags = {} if name in PROGRAMS else _dynamic_tags(elf)
        needed = {path for path in tags.get("DT_NEEDED", ()) if not path.startswith("/dev/cgpu/")}
        assert needed <= MANYLINUX2014 | LOADERS, name
        assert not tags.keys() & {"DT_RPATH", "DT_RUNPATH"}, name


def _binaries(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    contents = {name: wheel.read(name) for name in wheel.namelist()}
    found = {name: content for name, content in contents.items() if content[:4] == b"\x7fELF"}
    assert found.keys() > PROGRAMS | LIBRARIES
    return found


def test_binaries_name_no_folder_of_the_machine_that_built_them(wheel: zipfile.ZipFile) -> None:
    """Else they differ from folder to folder: nobody could build them again and compare."""
    folders = (str(ROOT), "ziglang", sysconfig.get_path("include"), str(Path.home() / ".cache"))
    for name, content in _binaries(wheel).items():
        assert [folder for folder in folders if folder.encode() in content] == [], name
        sections = {each.name for each in ELFFile(io.BytesIO(content)).iter_sections()}
        assert not {each for each in sections if each.startswith(".debug")}, name


def test_a_binary_is_the_same_bytes_in_whatever_folder_it_is_built(tmp_path: Path) -> None:
    path = "shim/cgpu_shim/_lib/libnvidia-ml.so.1"
    made = []
    for root in (tmp_path / "here", tmp_path / "in" / "another" / "place"):
        for part in ("native", "shim"):
            shutil.copytree(ROOT / part, root / part)
        shutil.copy(ROOT / "setup.py", root)
        made.append(products.build(path, platform.machine(), root / "out", root).read_bytes())
    assert made[0] == made[1]


def test_the_binding_can_be_read_by_all_whatever_the_umask(tmp_path: Path) -> None:
    made = [f"--build-lib={tmp_path / 'lib'}", f"--build-temp={tmp_path / 'temp'}"]
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "setup.py", "-q"]
    subprocess.run([*command, "build_ext", *made], cwd=ROOT, check=True)
    [binding] = (tmp_path / "lib").rglob("*.so")
    assert binding.stat().st_mode & 0o555 == 0o555


def _newest_glibc(elf: ELFFile) -> tuple[int, ...]:
    names = [
        version.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, versions in section.iter_versions()
        for version in versions
    ]
    numbers = [name.removeprefix("GLIBC_") for name in names]
    return max((tuple(map(int, number.split("."))) for number in numbers), default=(0,))


def _dynamic_tags(elf: ELFFile) -> dict[str, list[str]]:
    [section] = [each for each in elf.iter_sections() if isinstance(each, DynamicSection)]
    found: dict[str, list[str]] = {}
    for tag in section.iter_tags():
        value = getattr(tag, "needed", str(tag.entry.d_val))
        found.setdefault(tag.entry.d_tag, []).append(value)
    return found


def test_the_start_of_a_container_runs_on_the_other_processor(tmp_path: Path) -> None:
    """Static programs, under an emulator where the processor is not this one."""
    wheel = zipfile.ZipFile(distribution.wheel("aarch64"))
    emulator = [] if platform.machine() == "aarch64" else ["qemu-aarch64-static"]
    wheel.extractall(tmp_path)
    output = {}
    for name in sorted(PROGRAMS):
        program = tmp_path / name
        program.chmod(0o755)
        done = subprocess.run([*emulator, program], capture_output=True, text=True, check=False)
        output[program.name] = done.stdout + done.stderr
    assert output["cgpu-hook"] == "cgpu: expected cgpu-hook poststop, prestart or precreate\n"
    assert "/lib/cgpu-loader cannot be started" in output["cgpu-python"]  # which is not there
    assert "NAME:\n   runc" in output["cgpu-runtime"]  # handed to it, as all that is not ours


def test_the_other_processors_package_keeps_a_cap(tmp_path: Path) -> None:
    """Its Python side, ledger and both proxies, on a simulated GPU under the emulator."""
    root, package = images.emulated(), tmp_path / "package"
    subprocess.run(["dpkg", "--extract", distribution.deb("aarch64"), package], check=True)
    [installed] = package.glob("usr/lib/cgpu/lib/python3*/site-packages")
    emulator = ["qemu-aarch64-static", "-L", root, "-E", f"PYTHONPATH={installed}"]
    program = [root / "usr/bin/python3", PROGRAM, tmp_path / "machine"]
    done = subprocess.run([*emulator, *program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "machine": "aarch64",
        "refused": 2,
        "full": 6005,
        "shown": [6005, 6043],
        "left": 105,
    }
    assert "out of memory on GPU 0" in done.stderr


def test_the_source_distribution_is_the_repository(tmp_path: Path) -> None:
    """And the same bytes when it is made again, as kubectl's plug-in is. All is built from it."""
    first, second = (distribution.source(tmp_path / each) for each in "ab")
    for path in (first, first.with_name("kubectl-inspect-cgpu")):
        assert path.read_bytes() == (second.parent / path.name).read_bytes()
    with tarfile.open(first) as archive:
        names = [member.name.partition("/")[2] for member in archive if not member.isdir()]
    assert sorted(names) == sorted([*distribution.files(), "PKG-INFO", "setup.cfg"])
    pins = [path.read_text() for path in (images.CONSTRAINTS, images.IMAGE_CONSTRAINTS)]
    assert (first.parent / "constraints.txt").read_text() == "".join(pins), "for the image"


def test_a_wheel_has_every_module_and_nothing_else_of_the_tree(wheel: zipfile.ZipFile) -> None:
    modules = {
        f"{name}/{file.relative_to(ROOT / folder)}"
        for name, folder in PACKAGES.items()
        for pattern in ("*.py", "py.typed")
        for file in (ROOT / folder).rglob(pattern)
    }
    binding = "cgpu_native/_native.abi3.so"
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packed = {name for name in names if ".data/" not in name}
    folder = ROOT / "cli" / "cgpu_install" / "files"
    files = {f"cgpu_install/files/{file.name}" for file in folder.iterdir()}
    assert packed == modules | PROGRAMS | LIBRARIES | {binding} | files


def shared(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """What an installation has in ``share``, by path."""
    found = {name.partition(".data/data/share/")[2]: name for name in wheel.namelist()}
    return {path: wheel.read(name) for path, name in found.items() if path}


def test_a_wheel_has_documents_and_manual_pages(wheel: zipfile.ZipFile) -> None:
    """And what other programs read: rules of alerts, a dashboard, a RuntimeClass."""
    manual = ROOT / "docs" / "man"
    documents = ("*.md", "docs/*.*", "docs/decisions/*", "docs/design/*")
    expected = {f"man/man{file.suffix[1:]}/{file.name}": file for file in manual.iterdir()}
    for pattern in (*documents, "deploy/README.md"):
        files = ROOT.glob(pattern)
        expected |= {f"doc/cgpu/{file.relative_to(ROOT)}": file for file in files}
    names = ("deploy/config.toml", "deploy/runtimeclass.yaml")
    others = [*(ROOT / "deploy/prometheus").iterdir(), *(ROOT / name for name in names)]
    expected |= {f"cgpu/{file.relative_to(ROOT / 'deploy')}": file for file in others}
    assert shared(wheel) == {path: file.read_bytes() for path, file in expected.items()}


def test_an_installed_document_links_to_what_is_installed(wheel: zipfile.ZipFile) -> None:
    """But for files that are in ``share/cgpu``."""
    files = shared(wheel)
    folders = {str(parent) for path in files for parent in Path(path).parents}
    broken = {
        f"{path}: {target}"
        for path, content in files.items()
        for target in re.findall(rb"\]\((?!http|#)([^)#]+)", content if path[-3:] == ".md" else b"")
        if os.path.normpath(f"{path}/../{target.decode()}") not in {*files, *folders}
    }
    assert {line for line in broken if "deploy/prometheus" not in line} == set()


def test_everybody_may_read_a_wheels_files_and_execute_its_programs(
    wheel: zipfile.ZipFile,
) -> None:
    """Whatever the builder's umask."""
    for file in wheel.infolist():
        least = 0o755 if file.filename in PROGRAMS else 0o644
        assert file.external_attr >> 16 & least == least, file.filename


def test_a_wheel_has_the_licence_and_the_commands(wheel: zipfile.ZipFile) -> None:
    [metadata] = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(f"{metadata}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    commands = wheel.read(f"{metadata}/entry_points.txt").decode()
    assert [line.split(" = ")[0] for line in commands.splitlines() if " = " in line] == [
        "cgpu",
        "cgpu-smi",
        "cgpud",
        "kubectl-inspect-cgpu",
    ]
    [data] = {name.split("/")[0] for name in wheel.namelist() if ".data/" in name}
    program = wheel.read(f"{data}/scripts/cgpu-run")
    assert program.startswith(b"#!python\n")  # an installer names its interpreter there
    assert b"import re" not in program
