"""Where the tests get the real driver libraries from, on machines of different making."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.driver.real_driver import Source, parse_deb822, parse_one_line, private_sources

pytestmark = pytest.mark.unit

DEB822 = """\
# a comment
Types: deb deb-src
# another, inside
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb-src http://sources.example/debian bookworm main
deb [ arch=amd64 signed-by=/usr/share/keyrings/a.gpg ] http://mirror.example/debian bookworm main contrib # end
deb http://mirror.example/debian bookworm-updates main
"""  # noqa: E501 - one line is the format


def machine(etc: Path, system: str, codename: str, sources: str, text: str) -> Path:
    (etc / "apt" / "sources.list.d").mkdir(parents=True)
    (etc / "os-release").write_text(f'ID={system}\nVERSION_CODENAME="{codename}"\n')
    (etc / "apt" / sources).write_text(text)
    return etc


def test_deb822_sources_are_those_of_enabled_binary_stanzas() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc"
    assert list(parse_deb822(DEB822)) == [
        Source("http://mirror.example/debian", "bookworm bookworm-updates", "main", key)
    ]


def test_one_line_sources_keep_their_key() -> None:
    assert list(parse_one_line(ONE_LINE)) == [
        Source(
            "http://mirror.example/debian", "bookworm", "main contrib", "/usr/share/keyrings/a.gpg"
        ),
        Source("http://mirror.example/debian", "bookworm-updates", "main"),
    ]


@pytest.mark.parametrize(
    ("file", "text"),
    [("sources.list", ONE_LINE), ("sources.list.d/debian.sources", DEB822)],
)
@pytest.mark.parametrize(("version", "suite"), [("535", "bookworm"), ("550", "trixie")])
def test_debian_has_the_libraries_in_non_free(
    file: str, text: str, version: str, suite: str, tmp_path: Path
) -> None:
    etc = machine(tmp_path / "etc", "debian", "bookworm", file, text)
    stanza, release = private_sources(version, etc)
    lines = stanza.splitlines()
    assert "URIs: http://mirror.example/debian" in lines
    assert f"Suites: {suite}" in lines
    assert "Components: non-free" in lines
    assert "Signed-By:" in stanza
    assert release.packages == ("libcuda1", "libnvidia-ml1", "nvidia-smi")


def test_ubuntu_has_them_in_restricted(tmp_path: Path) -> None:
    text = "deb http://mirror.example/ubuntu jammy main universe\n"
    stanza, release = private_sources(
        "535", machine(tmp_path / "etc", "ubuntu", "jammy", "sources.list", text)
    )
    assert "Suites: jammy jammy-updates\nComponents: restricted\n" in stanza
    assert release.packages == ("libnvidia-compute-535", "nvidia-utils-535")


@pytest.mark.parametrize(
    ("system", "text", "match"),
    [("arch", ONE_LINE, "no source known"), ("debian", "", "offers bookworm main")],
)
def test_a_machine_without_such_a_source_is_told_so(
    system: str, text: str, match: str, tmp_path: Path
) -> None:
    etc = machine(tmp_path / "etc", system, "bookworm", "sources.list", text)
    with pytest.raises(LookupError, match=match):
        private_sources("550", etc)
