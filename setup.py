"""Build of everything that is not Python: proxies, launcher, hook and simulated driver.

One table, ``BINARIES``, names each product, its sources and how it is linked. All of it runs inside
containers with unknown (old) C libraries, so it is compiled by ``zig cc`` against glibc 2.17 or
statically against musl. The cffi binding is compiled likewise, so that one wheel serves every
distribution (manylinux2014) and CPython.

``python setup.py build_binaries`` rebuilds what is out of date, in place. ``CGPU_BUILD_MACHINE``
names another processor than this machine's: aarch64, or x86_64.
"""

from __future__ import annotations

import csv
import os
import platform
import struct
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import ClassVar, NamedTuple

from setuptools import Command, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MACHINE = os.environ.get("CGPU_BUILD_MACHINE", platform.machine())
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wpointer-arith",
    "-Wwrite-strings",
    "-Wvla",
    "-Wconversion",
    "-Wno-sign-conversion",
]
# -s: no debugging information. It would name folders of this machine. zig would also compile musl
# with it, which takes longer and makes large programs. The code is the same without -s.
CFLAGS = ["-std=gnu11", "-O2", "-s", "-fno-sanitize=all", "-iquote", "native", *WARNINGS]
if os.environ.get("CGPU_WERROR"):
    CFLAGS.append("-Werror")

# A proxy finds its real library and its state through one absolute directory. The path is padded
# with "/." so that cgpu-run can write another directory over it (cgpu_shim.relocation).
BASE = "/dev/cgpu" + "/." * 100
FOLDERS = ("native", "shim", "hook", "tests/sim")
PROXIED = ("", "ledger/", "holdings/", "gate/")  # what of native runs inside programs
GLIBC = f"{MACHINE}-linux-gnu.2.17"
MUSL = f"{MACHINE}-linux-musl"
SHT_DYNSYM, WEAK_FUNCTION, GLOBAL_FUNCTION = 11, 0x22, 0x12  # of ELF


class Binary(NamedTuple):
    """One product of the build: ``path`` linked from ``sources`` for zig's ``target``."""

    path: str
    sources: list[str]
    target: str
    flags: list[str]
    needed: str | None = None  # absolute DT_NEEDED of a proxy
    names: str = ""  # the table of all names of the library that a proxy is for


def _shared(soname: str) -> list[str]:
    return ["-shared", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE",
            f"-Wl,-soname,{soname}", "-Wl,--no-undefined", "-lpthread", "-ldl"]  # fmt: skip


def _proxy(soname: str, folder: str, names: str) -> Binary:
    sources = sorted(glob(f"shim/{folder}/**/*.c", recursive=True) + glob("shim/*.c"))
    sources += [path for part in PROXIED for path in sorted(glob(f"native/{part}*.c"))]
    # Never unloaded: the ledger's slot and what programs remember of our functions outlive dlclose.
    # Optimised as a whole: a call passes through many small functions of several files.
    flags = [*_shared(soname), "-flto", "-Wl,-z,nodelete", "-I", "shim",
             "-iquote", f"shim/{folder}", "-ftls-model=initial-exec",
             f'-DCGPU_BASE="{BASE}"']  # fmt: skip
    needed = f"{BASE}/real/{soname}"
    return Binary(f"shim/cgpu_shim/_lib/{soname}", sources, GLIBC, flags, needed, names)


def _sim(soname: str, folder: str) -> Binary:
    sources = sorted(
        glob(f"tests/sim/{folder}/**/*.c", recursive=True) + glob("tests/sim/machine/*.c")
    )
    flags = [*_shared(soname), "-Wl,-Bsymbolic", "-I", "tests/sim/machine",
             "-iquote", f"tests/sim/{folder}", "-lm"]  # fmt: skip
    return Binary(f"tests/sim/cgpu_sim/_lib/{soname}", sources, GLIBC, flags)


def _static(name: str) -> Binary:
    sources = sorted(glob(f"hook/{name}/*.c") + glob("hook/common/*.c"))
    flags = ["-static", "-D_GNU_SOURCE", "-I", "hook/common"]
    return Binary(f"hook/cgpu_hook/_bin/{name}", sources, MUSL, flags)


# What takes longest is first: the first program for musl has to wait for musl itself.
BINARIES = [
    _static("cgpu-runtime"),
    _proxy("libcuda.so.1", "cuda", "shim/driver_entry_points.csv"),
    _proxy("libnvidia-ml.so.1", "nvml", "shim/nvml/entry_points.csv"),
    _sim("libcuda.so.1", "cuda"),
    _sim("libnvidia-ml.so.1", "nvml"),
    _static("cgpu-hook"),
    _static("cgpu-python"),
]


def _zig(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *arguments], check=True, cwd=ROOT)


def _headers() -> list[str]:
    patterns = (f"{folder}/**/*.{kind}" for folder in FOLDERS for kind in ("h", "def", "inc"))
    return [header for pattern in patterns for header in glob(pattern, recursive=True)]


def _out_of_date(binary: Binary, target: Path) -> bool:
    if not target.exists():
        return True
    built = target.stat().st_mtime
    inputs = [*binary.sources, *_headers(), binary.names or "setup.py", "setup.py"]
    return any((ROOT / path).stat().st_mtime > built for path in inputs)


def build_binary(binary: Binary, target: Path) -> None:
    """Compile and link ``binary`` into ``target`` unless it is newer than all its inputs."""
    if not binary.sources or not _out_of_date(binary, target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    link = list(binary.flags)
    if binary.needed is not None:
        stub = _needed_stub(binary, target)
        link += [str(_all_names(binary, stub)), "-Wl,--no-as-needed", str(stub)]
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    _zig("-target", binary.target, *CFLAGS, "-o", str(temporary), *binary.sources, *link)
    if binary.needed is not None:
        _leave_to_linkers(temporary)
    temporary.chmod(0o755)  # users of containers other than root load it, whatever the umask
    temporary.rename(target)


def _needed_stub(binary: Binary, target: Path) -> Path:
    """An empty library whose SONAME is the absolute path that the proxy's DT_NEEDED must name."""
    folder = ROOT / "build" / f"needed-{MACHINE}"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{target.name}.c"
    source.write_text("extern int cgpu_empty;\n")
    stub = folder / f"{target.name}.stub.so"
    soname = f"-Wl,-soname,{binary.needed}"
    # Without a library: zig would build parts of one, for a mode that nothing else is built in.
    nothing = ["-nostdlib", "-fno-sanitize=all"]
    _zig("-target", binary.target, "-shared", *nothing, "-o", str(stub), str(source), soname)
    return stub


def _all_names(binary: Binary, stub: Path) -> Path:
    """C that weakly defines every name of the library that ``binary`` is for.

    Those of the debugger's interface are left out: debuggers look for them in the files themselves.
    """
    with (ROOT / binary.names).open(newline="") as file:
        names = [row["name"] for row in csv.DictReader(file) if row["class"] != "DEBUGGER"]
    weak = '__attribute__((weak, visibility("default"), alias("none"))) void'
    source = stub.with_suffix(".names.c")
    text = "".join(f"{weak} {name}(void);\n" for name in names)
    source.write_text(f"static void none(void) {{}}\n{text}")
    return source


def _leave_to_linkers(library: Path) -> None:
    """Make the weak functions of ``library`` known to linkers and unknown to loaders.

    A linker takes a name for defined if its symbol has a section. Loaders pass over a symbol
    without a value, so they find the function in the driver's library, or nowhere.
    """
    data = bytearray(library.read_bytes())
    headers, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    for header in range(headers, headers + size * count, size):
        kind, start, length = struct.unpack_from("<4xI16xQQ", data, header)
        for symbol in range(start, start + length, 24) if kind == SHT_DYNSYM else ():
            is_defined = data[symbol + 6 : symbol + 8] != bytes(2)  # it has a section
            if data[symbol + 4] == WEAK_FUNCTION and is_defined:
                data[symbol + 4] = GLOBAL_FUNCTION
                data[symbol + 8 : symbol + 24] = bytes(16)  # value and size
    library.write_bytes(data)


class BuildBinaries(Command):
    """Build the table in place, for development and for the tests."""

    description = __doc__
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        old = [each for each in BINARIES if each.sources and _out_of_date(each, ROOT / each.path)]
        if not old:
            return
        jobs = os.cpu_count() or 1  # zig itself compiles one file after the other on two cores
        print(f"Compiling {len(old)} binaries ...", flush=True)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(_build_in_place, old))


def _build_in_place(binary: Binary) -> None:
    began = time.monotonic()
    build_binary(binary, ROOT / binary.path)
    print(f"Compiling {binary.path}: {time.monotonic() - began:.0f} s", flush=True)


def _multiarch_headers() -> Path:
    """Where the ``pyconfig.h`` of Debian and Ubuntu finds the one that it stands for.

    That one is outside zig's include path. It is this machine's own also where the build is for
    another: all that the stable ABI takes from it are sizes, and those of all 64-bit Linux agree.
    """
    folder = ROOT / "build" / f"python-{MACHINE}"
    version = sysconfig.get_config_var("LDVERSION")
    header = folder / f"{MACHINE}-linux-gnu" / f"python{version}" / "pyconfig.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_bytes(_pyconfig(Path(sysconfig.get_config_h_filename())).read_bytes())
    return folder


def _pyconfig(named: Path) -> Path:
    """The ``pyconfig.h`` with the sizes: Debian's Python names one that only includes it."""
    machine = str(sysconfig.get_config_var("MULTIARCH"))
    real = named.parent.parent / machine / named.parent.name / named.name
    header = real if real.exists() else named
    if not header.exists():
        sys.exit(f"{header} is not there: apt-get install python3-dev, or what else has Python.h")
    return header


class BuildExt(build_ext):
    """The cffi binding, by everything else's compiler, with nothing of the interpreter's."""

    def build_extensions(self) -> None:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", GLIBC]
        compile_flags = ["-O2", "-s", "-fPIC", "-DNDEBUG", "-fno-sanitize=all"]
        self.compiler.set_executables(
            compiler_so=[*zig, *compile_flags],
            linker_so=[*zig, *compile_flags, "-shared", "-lpthread"],  # zig's own parts, as above
        )
        self.compiler.add_include_dir(str(_multiarch_headers()))
        self.compiler.set_library_dirs([])
        self.compiler.set_runtime_library_dirs([])  # no RUNPATH to the builder's interpreter
        super().build_extensions()
        for extension in self.extensions:  # users other than root load it, whatever the umask
            Path(self.get_ext_fullpath(extension.name)).chmod(0o755)


class BuildPy(build_py):
    """Python files, with the binaries beside them."""

    def run(self) -> None:
        if not self.editable_mode:  # there `make` builds them, in place
            self.run_command("build_binaries")
        super().run()


# What people read is as in the repository, so that links work; what other programs read is apart.
DOCUMENTS = [
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "deploy/README.md"),
    *(path for kind in ("*.*", "decisions/*", "design/*") for path in sorted(glob(f"docs/{kind}"))),
]
SHARED = ["deploy/config.toml", "deploy/runtimeclass.yaml", *sorted(glob("deploy/prometheus/*"))]
MANUAL = sorted(glob("docs/man/*"))


def _data_files() -> list[tuple[str, list[str]]]:
    """What an installation has in ``share``, by folder."""
    named = {path: Path("doc/cgpu", path) for path in DOCUMENTS}
    named |= {path: Path("cgpu", Path(path).relative_to("deploy")) for path in SHARED}
    named |= {path: Path(f"man/man{path[-1]}", Path(path).name) for path in MANUAL}
    folders: dict[str, list[str]] = {}
    for path, target in named.items():
        folders.setdefault(f"share/{target.parent}", []).append(path)
    return list(folders.items())


setup(
    packages=[
        "cgpu_env",
        "cgpu_native",
        "cgpu_shim",
        "cgpu_node",
        "cgpu_node.facts",
        "cgpu_node.image",
        "cgpu_node.settings",
        "cgpu_node.shares",
        "cgpu_node.view",
        "cgpu_hook",
        "cgpu_entry",
        "cgpu_cli",
        "cgpu_cli.commands",
        "cgpu_cli.demo",
        "cgpu_cli.running",
        "cgpu_cli.show",
        "cgpu_install",
        "cgpu_upgrade",
        "cgpu_doctor",
        "cgpu_server",
        "cgpu_server.audit",
        "cgpu_server.control",
        "cgpu_server.metrics",
        "cgpu_server.state",
        "cgpu_server.tree",
        "cgpu_k8s",
        "cgpu_k8s.admission",
        "cgpu_k8s.apiserver",
        "cgpu_k8s.dra",
        "cgpu_k8s.inspect",
        "cgpu_k8s.kubelet",
        "cgpu_k8s.node",
        "cgpu_k8s.objects",
        "cgpu_k8s.scheduler",
        "cgpu_k8s.scheduler.policies",
        "cgpu_sim",
    ],
    package_dir={
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
    },
    data_files=_data_files(),
    include_package_data=False,  # all of it is in package_data
    package_data={
        "cgpu_env": ["py.typed"],
        "cgpu_native": ["py.typed", "*.pyi"],
        "cgpu_shim": ["py.typed", "_lib/*"],
        "cgpu_node": ["py.typed"],
        "cgpu_hook": ["py.typed", "_bin/*"],
        "cgpu_entry": ["py.typed"],
        "cgpu_cli": ["py.typed"],
        "cgpu_install": ["py.typed", "files/*"],
        "cgpu_upgrade": ["py.typed"],
        "cgpu_doctor": ["py.typed"],
        "cgpu_server": ["py.typed"],
        "cgpu_k8s": ["py.typed"],
        "cgpu_sim": ["py.typed", "_lib/*"],
    },
    cffi_modules=["native/cgpu_native/build.py:ffibuilder"],
    cmdclass={"build_binaries": BuildBinaries, "build_ext": BuildExt, "build_py": BuildPy},
    options={
        "bdist_wheel": {"py_limited_api": "cp310", "plat_name": f"manylinux2014_{MACHINE}"},
    },
)
