"""Lay out the package's files: a private environment in /usr/lib/cgpu, and its programs.

``stage.py ROOT WHEELS`` installs the wheels below ``ROOT`` for Debian's own Python, and writes what
the package depends on to ``debian/cgpu.substvars``. Only file formats are dealt with, so it does
this for another processor as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

PREFIX = "/usr/lib/cgpu"
COMMANDS = ("cgpu", "cgpu-run", "cgpu-smi", "cgpud")
STARTED_BY_ENGINES = ("cgpu-runtime", "cgpu-hook")
DEBIAN_PYTHON = "/usr/bin/python3"


def main(root: Path, wheels: Path) -> None:
    """Make the tree below ``root``."""
    version = _python_version()
    packages = f"{PREFIX}/lib/python{version}/site-packages"
    for wheel in sorted(wheels.glob("*.whl")):
        _install(wheel, root, packages)
    home = root / PREFIX[1:]
    for program in (home / "bin").iterdir():
        if program.name not in COMMANDS:  # of the libraries
            program.unlink()
            continue
        first, _, rest = program.read_text().partition("\n")
        program.write_text(f"{first} -I\n{rest}")  # no PYTHONPATH of whoever starts it
    (home / "bin" / "python3").symlink_to(f"/usr/bin/python{version}")
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    targets = [f"../lib/cgpu/bin/{name}" for name in COMMANDS]
    targets += [f"..{packages[4:]}/cgpu_hook/_bin/{name}" for name in STARTED_BY_ENGINES]
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for target in targets:
        (root / "usr/bin" / Path(target).name).symlink_to(target)
    depends = [*_python_range(version), f"libc6 (>= {_glibc_floor(home)})"]
    Path("debian/cgpu.substvars").write_text(f"cgpu:Depends={', '.join(depends)}\n")


def _install(wheel: Path, root: Path, packages: str) -> None:
    own = wheel.name.startswith("cgpu-")
    scheme = {
        "purelib": packages,
        "platlib": packages,
        "headers": f"{PREFIX}/include",
        "scripts": f"{PREFIX}/bin",
        "data": "/usr" if own else PREFIX,  # our manual pages and documents
    }
    wanted = SchemeDictionaryDestination(
        scheme, interpreter=f"{PREFIX}/bin/python3", script_kind="posix", destdir=str(root)
    )
    with WheelFile.open(wheel) as source:
        install(source=source, destination=wanted, additional_metadata={"INSTALLER": b"dpkg\n"})


def _python_version() -> str:
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    return subprocess.check_output([DEBIAN_PYTHON, "-c", program], text=True).strip()


def _python_range(version: str) -> list[str]:
    """Return the range of Python's releases: compiled modules of libraries are for one release."""
    major, minor = map(int, version.split("."))
    return [f"python3 (>= {version}~)", f"python3 (<< {major}.{minor + 1}~)"]


def _glibc_floor(folder: Path) -> str:
    """Return the oldest glibc that has all that the binaries ask for."""
    found = [(2, 17)]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            found += _glibc_versions(path)
    return ".".join(map(str, max(found)))


def _glibc_versions(path: Path) -> list[tuple[int, ...]]:
    with path.open("rb") as file:
        sections = list(ELFFile(file).iter_sections(type="SHT_GNU_verneed"))
        names = [
            need.name
            for section in sections
            if isinstance(section, GNUVerNeedSection)
            for _, needs in section.iter_versions()
            for need in needs
        ]
    numbers = [name.removeprefix("GLIBC_") for name in names if name.startswith("GLIBC_2")]
    return [tuple(map(int, number.split("."))) for number in numbers]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
