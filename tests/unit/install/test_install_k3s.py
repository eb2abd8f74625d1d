"""A distribution that makes containerd's file from a template, which is no TOML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cgpu_install import containerd, toml_text
from cgpu_install.engines import select_engines
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import plan_install

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md"
PROGRAM = "/usr/bin/cgpu-runtime"


@pytest.mark.parametrize("maker", ["k3s", "rke2"])
@pytest.mark.parametrize(
    ("version", "template"), [(2, "config.toml.tmpl"), (3, "config-v3.toml.tmpl")]
)
def test_an_installation_says_which_template_is_to_be_changed(
    tmp_path: Path, maker: str, version: int, template: str
) -> None:
    folder = f"/var/lib/rancher/{maker}/agent/etc/containerd"
    made = tmp_path / folder[1:] / "config.toml"
    made.parent.mkdir(parents=True)
    made.write_text(f"version = {version}\n")
    machine = Machine(str(tmp_path))

    def notes() -> list[str]:
        return plan_install(
            machine, select_engines(["containerd"]), Journal(machine), forgiving=False
        ).notes

    [note] = notes()
    assert note == (
        f"containerd: add the runtime cgpu to {folder}/{template}, from which {maker} makes"
        f" config.toml, as docs/kubernetes.md shows, and restart {maker}"
    )
    made.write_text(f'version = {version}\n[x]\nBinaryName = "{PROGRAM}"\n')
    assert notes() == []
    made.unlink()
    assert notes() == []


@pytest.mark.parametrize("version", [2, 3])
def test_the_documented_template_has_what_an_installation_would_write(version: int) -> None:
    [block] = re.findall(r"```toml\n(\{\{ template.*?)```", DOCUMENT.read_text(), re.DOTALL)
    base = f"version = {version}\n"
    text = block.replace('{{ template "base" . }}', base).replace("{{ .SystemdCgroup }}", "true")
    plugins = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
    text = text.replace(plugins[3], plugins[version])
    runc = (
        f'[plugins."{plugins[version]}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    )
    wanted = toml_text.parse(containerd.add_runtime(base + runc, PROGRAM))
    place = toml_text.parse(text)["plugins"][plugins[version]]["containerd"]["runtimes"]
    assert place == {"cgpu": wanted["plugins"][plugins[version]]["containerd"]["runtimes"]["cgpu"]}
