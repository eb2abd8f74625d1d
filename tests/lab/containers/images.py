"""Root filesystems for the system tests, made without a registry and kept in the tests' cache.

Each is a folder whose name carries a hash of its recipe: a changed recipe is another image.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lab.driver import real_driver

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).resolve().parents[2] / "system" / "programs"
CONSTRAINTS = Path(__file__).resolve().parents[3] / "deploy" / "debian" / "constraints.txt"
IMAGE_CONSTRAINTS = CONSTRAINTS.parents[1] / "image" / "constraints.txt"  # beside those
GPUSTAT = "gpustat==1.1.1"
GUEST_PACKAGES = [GPUSTAT, "nvitop==1.7.2", "nvidia-ml-py==13.615.71", "cuda-bindings==12.9.10",
                  "numba-cuda[cu12]==0.30.4"]  # fmt: skip
# As pyproject.toml requires them: always, and for the extra k8s.
_ABOUT = tomllib.loads((CONSTRAINTS.parents[2] / "pyproject.toml").read_text())["project"]
PROGRAM_PACKAGES = [*_ABOUT["dependencies"], *_ABOUT["optional-dependencies"]["k8s"]]
# What only the previous release requires; an upgrade from it is tested.
REQUIRED_BEFORE = ["nvidia-ml-py==13.615.71", "psutil==7.2.2"]
CUDA = ("nvidia-cuda-runtime==13.5.37", "nvidia-cuda-cupti==13.5.25")  # the newest names
PYTHON_VERSION = "3.11"  # of Debian 12, the guest
MACHINE = platform.machine()
SUITE = "bookworm"
EMULATED = "arm64"
BOOTING = ["python3", "python3-venv", "systemd-sysv", "dbus", "fuse3", "runc", "man-db",
           "bash-completion"]  # fmt: skip
USERS = "root:x:0:0:root:/root:/bin/sh\nuser:*:1000:1000:user:/tmp:/bin/sh\n"
# What no program reads: a third of the size.
UNUSED = ["usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/info", "var/cache/apt",
          "var/lib/apt/lists", "usr/share/zoneinfo", "usr/lib/python3.11/ensurepip"]  # fmt: skip


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def _small(root: Path) -> None:
    """Static busybox, and a program linked to musl statically and one dynamically; no glibc."""
    for folder in ("bin", "etc", "lib", "proc", "sys", "dev", "tmp", "root"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text(USERS)
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    busybox = shutil.which("busybox") or "/bin/busybox"
    shutil.copy(busybox, root / "bin/busybox")
    for applet in subprocess.check_output([busybox, "--list"], text=True).split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    loader = Path(f"/lib/ld-musl-{MACHINE}.so.1")
    shutil.copy(loader, root / "lib" / loader.name)
    _run("musl-gcc", "-static", "-o", root / "bin/musl-static", PROGRAMS / "plain.c")
    _run("musl-gcc", "-o", root / "bin/musl-dynamic", PROGRAMS / "plain.c")


def _debian_mirror() -> list[str]:
    """The machine's own mirror if it serves Debian; none leaves debootstrap its default."""
    found = [s.uris for s in real_driver.machine_sources() if SUITE in s.suites.split()]
    return found[:1]


def _debian(root: Path) -> None:
    """Debian 12 with its python3."""
    _run("debootstrap", "--variant=minbase", "--include=python3", SUITE, root, *_debian_mirror())
    for folder in UNUSED:
        shutil.rmtree(root / folder, ignore_errors=True)
    with (root / "etc/passwd").open("a") as users:
        users.write(USERS.splitlines()[1] + "\n")


def _booting(root: Path) -> None:
    """Debian 12 as a machine has it: with systemd."""
    included = ",".join(BOOTING)
    mirror = _debian_mirror()
    _run("debootstrap", "--variant=minbase", f"--include={included}", SUITE, root, *mirror)
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)


def _guest_packages(root: Path) -> None:
    """Python programs and libraries from PyPI that the guest runs, for the guest's Python."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = root.with_suffix(".wheels")
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, GPUSTAT)  # comes as source only
    guest: list[str | Path] = [
        "--target",
        root,
        "--python-version",
        PYTHON_VERSION,
        "--only-binary=:all:",
    ]
    _run(*pip, "install", *guest, "--find-links", wheels, *GUEST_PACKAGES)
    shutil.rmtree(wheels)


def _emulated(root: Path) -> None:
    """Debian 12's python3 for the other processor, unpacked and not set up."""
    options = ["--foreign", f"--arch={EMULATED}", "--variant=minbase", "--include=python3"]
    _run("debootstrap", *options, SUITE, root, *_debian_mirror())
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        _run("dpkg", "--extract", package, root)
    for folder in UNUSED:
        shutil.rmtree(root / folder, ignore_errors=True)


def _wheels(root: Path) -> None:
    """The libraries of a node, for Debian's Python."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    platform_tag = f"manylinux2014_{MACHINE}"
    suited = ["--only-binary=:all:", "--python-version", PYTHON_VERSION, "--platform", platform_tag]
    _run(*pip, "--no-deps", *suited, "--dest", root, "--requirement", CONSTRAINTS, *REQUIRED_BEFORE)


def _with_pip(root: Path) -> None:
    """Debian 12's python3 with pip, and in /wheels what the extra k8s needs beside cgpu itself."""
    _run("cp", "--archive", debian(), root)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "install", "--target", root / "usr/lib/python3/dist-packages", "pip")
    platform_tag = f"manylinux2014_{MACHINE}"
    suited = ["--only-binary=:all:", "--python-version", PYTHON_VERSION, "--platform", platform_tag]
    constraints = [f"--constraint={path}" for path in (CONSTRAINTS, IMAGE_CONSTRAINTS)]
    _run(*pip, "download", *suited, *constraints, "--dest", root / "wheels", *PROGRAM_PACKAGES)


def cached(name: str, build: Callable[[Path], None], inputs: object) -> Path:
    """The folder that ``build`` fills; made once for the same ``build`` and ``inputs``."""
    recipe = inspect.getsource(build) + repr(inputs) + MACHINE
    cache = real_driver.cache_directory()
    root = cache / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            work = cache / f".{name}.new"
            shutil.rmtree(work, ignore_errors=True)
            build(work)
            work.rename(root)
    return root


def _cuda(root: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "install", "--no-deps", "--target", root, *CUDA)


def cuda_header(name: str = "cuda.h") -> Path:
    """The newest header of CUDA of this name that NVIDIA has published."""
    [header] = cached("cuda", _cuda, CUDA).rglob(name)
    return header


def _programs(root: Path) -> None:
    root.mkdir()
    for program in PROGRAMS.glob("*.py"):
        shutil.copyfile(program, root / program.name)


def programs() -> Path:
    """The tests' own programs, which users of a container can read wherever the checkout is."""
    texts = sorted((program.name, program.read_text()) for program in PROGRAMS.glob("*.py"))
    return cached("programs", _programs, texts)


def small() -> Path:
    """A root filesystem of 3 MB: busybox and two musl programs."""
    return cached("small", _small, [USERS, (PROGRAMS / "plain.c").read_bytes()])


def debian() -> Path:
    """A root filesystem of Debian 12 with Python 3.11."""
    return cached("debian", _debian, [SUITE, USERS, UNUSED])


def booting() -> Path:
    """A root filesystem of Debian 12 whose systemd can be started."""
    return cached("booting", _booting, [SUITE, BOOTING])


def emulated() -> Path:
    """A root filesystem whose Python runs under ``qemu-aarch64-static``."""
    return cached("emulated", _emulated, [SUITE, EMULATED, UNUSED])


def wheels() -> Path:
    """A folder from which pip installs what a node needs beside cgpu itself."""
    return cached("wheels", _wheels, [CONSTRAINTS.read_text(), REQUIRED_BEFORE, PYTHON_VERSION])


def with_pip() -> Path:
    """A root filesystem in which pip installs ``cgpu[k8s]`` without a network."""
    constraints = CONSTRAINTS.read_text() + IMAGE_CONSTRAINTS.read_text()
    return cached("pip", _with_pip, [SUITE, USERS, UNUSED, PROGRAM_PACKAGES, constraints])


def guest_packages() -> Path:
    """A folder for the guest's ``PYTHONPATH``."""
    return cached("guest", _guest_packages, [GUEST_PACKAGES, PYTHON_VERSION])
