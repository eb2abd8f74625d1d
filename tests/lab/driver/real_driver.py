"""The real NVIDIA user-space libraries, for tests that compare ours with them.

They come from the distribution's own archive (the component that carries non-free software),
through a private apt configuration derived from the machine's sources, and are unpacked in a cache
folder without being installed. They are NVIDIA's: never committed, never shipped.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ETC = Path("/etc")


class Release(NamedTuple):
    """Where one driver version is found in a distribution's archive."""

    suites: str
    component: str
    packages: tuple[str, ...]


_DEBIAN_PACKAGES = ("libcuda1", "libnvidia-ml1", "nvidia-smi")
_UBUNTU_SUITES = "{0} {0}-updates"
RELEASES = {
    ("debian", "535"): Release("bookworm", "non-free", _DEBIAN_PACKAGES),
    ("debian", "550"): Release("trixie", "non-free", _DEBIAN_PACKAGES),
    ("ubuntu", "535"): Release(
        _UBUNTU_SUITES, "restricted", ("libnvidia-compute-535", "nvidia-utils-535")
    ),
    ("ubuntu", "550"): Release(
        _UBUNTU_SUITES, "restricted", ("libnvidia-compute-550", "nvidia-utils-550")
    ),
}


class Source(NamedTuple):
    """One apt source, with the values that a private copy of it needs."""

    uris: str
    suites: str
    components: str
    signed_by: str = ""

    def restricted_to(self, suites: str, component: str) -> str:
        """This archive's deb822 stanza for other suites and one component."""
        signed = f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        return f"Types: deb\nURIs: {self.uris}\nSuites: {suites}\nComponents: {component}\n{signed}"


def parse_deb822(text: str) -> Iterator[Source]:
    """Sources in a ``.sources`` file."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", text):
        pairs = re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)
        fields = {name.lower(): value.rstrip() for name, value in pairs}
        enabled = fields.get("enabled", "yes").lower() not in {"no", "false", "0"}
        if enabled and "deb" in fields.get("types", "").split():
            yield Source(
                fields.get("uris", ""),
                fields.get("suites", ""),
                fields.get("components", ""),
                fields.get("signed-by", ""),
            )


def parse_one_line(text: str) -> Iterator[Source]:
    """Sources in a ``.list`` file."""
    pattern = r"^\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)[ \t]+([^#\n]+)"
    for options, uri, suite, components in re.findall(pattern, text, flags=re.MULTILINE):
        signed = re.search(r"signed-by=(\S+)", options)
        yield Source(uri, suite, components.strip(), signed.group(1) if signed else "")


def machine_sources(etc: Path = ETC) -> list[Source]:
    """Every enabled binary source of this machine's apt configuration."""
    apt = etc / "apt"
    sources: list[Source] = []
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        sources += parse_deb822(path.read_text())
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]:
        if path.exists():
            sources += parse_one_line(path.read_text())
    return sources


def _os_release(etc: Path = ETC) -> dict[str, str]:
    lines = (etc / "os-release").read_text().splitlines()
    return {k: v.strip("\"'") for k, _, v in (line.partition("=") for line in lines)}


def private_sources(version: str, etc: Path = ETC) -> tuple[str, Release]:
    """The apt sources file that offers driver ``version``, and what to take from it.

    Raises:
        LookupError: this distribution is not known, or its main archive is not configured.
    """
    system = _os_release(etc)
    codename = system.get("VERSION_CODENAME", "")
    release = RELEASES.get((system.get("ID", ""), version))
    if release is None:
        raise LookupError(f"no source known for driver {version} on {system.get('PRETTY_NAME')}")
    suites = release.suites.format(codename)
    for source in machine_sources(etc):
        if codename in source.suites.split() and "main" in source.components.split():
            return source.restricted_to(suites, release.component), release
    raise LookupError(f"no apt source of this machine offers {codename} main")


def cache_directory() -> Path:
    """Where downloads of the tests are kept: ``$CGPU_TEST_CACHE`` or ``~/.cache/cgpu-tests``."""
    configured = os.environ.get("CGPU_TEST_CACHE")
    path = Path(configured) if configured else Path.home() / ".cache" / "cgpu-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(sources: str, packages: Sequence[str], work: Path) -> list[Path]:
    """Download packages into ``work``, from ``sources`` in the form of a ``.sources`` file."""
    for folder in ("lists/partial", "cache/archives/partial", "state", "packages"):
        (work / folder).mkdir(parents=True)
    (work / "private.sources").write_text(sources)
    options = {
        "Dir::Etc::sourcelist": work / "private.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "APT::Update::Post-Invoke": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    target = work / "packages"
    for arguments in (["update"], ["download", *packages]):
        command = [*apt, *arguments]
        done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"apt-get {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return sorted(target.glob("*.deb"))


def driver_root(version: str) -> Path:
    """The folder in which driver ``version`` (``"535"`` or ``"550"``) is unpacked; fetched once."""
    cache = cache_directory()
    root = cache / f"nvidia-{version}"
    with _locked(cache / f".nvidia-{version}.lock"):
        if not root.exists():
            work = cache / f".nvidia-{version}.new"
            shutil.rmtree(work, ignore_errors=True)
            sources, release = private_sources(version)
            for package in download(sources, release.packages, work):
                subprocess.run(["dpkg", "-x", package, work / "root"], check=True)
            (work / "root").rename(root)
            shutil.rmtree(work)
    return root


def real_library(version: str, soname: str) -> Path:
    """The real library ``soname`` (``libcuda.so.1``, ``libnvidia-ml.so.1``) of ``version``."""
    stem = soname.removesuffix(".1")
    found = [p for p in driver_root(version).rglob(f"{stem}.{version}.*") if p.is_file()]
    if len(found) != 1:
        raise FileNotFoundError(f"{stem}.{version}.* in {driver_root(version)}: {found}")
    return found[0]


def real_nvidia_smi(version: str = "535") -> Path:
    """The real ``nvidia-smi`` program."""
    for path in driver_root(version).rglob("nvidia-smi"):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"nvidia-smi in {driver_root(version)}")
