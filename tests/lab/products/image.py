"""cgpu's image, which docker builds without a network from what ``make dist`` would leave."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_env.version import VERSION
from lab.containers import images
from lab.containers.engines import ULIMITS
from lab.products import releases

if TYPE_CHECKING:
    from lab.containers.engines import Docker, Result

NAME = f"cgpu:{VERSION}"  # by the chart
NEXT = f"{NAME}.1"
_DOCKERFILE = releases.ROOT / "deploy" / "image" / "Dockerfile"
_BASE = "with-pip"
_OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
# The same in another version, which installs programs of its own on a node.
_NEXT_DOCKERFILE = f"""FROM {NAME}
USER 0:0
RUN python3 -c "import cgpu_env.version as v; open(v.__file__, 'a').write('VERSION += \\'.1\\'')"
USER 65532:65532
"""


def make_context(docker: Docker, folder: Path) -> Path:
    """Make the folder of which the image is built, below ``folder``, and give docker its base."""
    root = images.with_pip()
    tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    settings = [f"--change=ENV {name}={value}" for name, value in _OFFLINE.items()]
    docker.docker("import", *settings, "-", _BASE, stdin=tar.stdout)
    assert tar.wait() == 0
    wheel = releases.present_wheel(folder)
    constraints = images.CONSTRAINTS.read_text() + images.IMAGE_CONSTRAINTS.read_text()
    (wheel.parent / "constraints.txt").write_text(constraints)
    return wheel.parent


def build(docker: Docker, context: Path, tag: str, *, check: bool = True) -> Result:
    """Build the image of a context."""
    words = ["build", "--network=none", *ULIMITS, f"--build-arg=BASE={_BASE}", f"--tag={tag}"]
    return docker.docker(*words, f"--file={_DOCKERFILE}", context, timeout=300, check=check)


def save_two(docker: Docker, folder: Path) -> Path:
    """Return a file with the images ``NAME`` and ``NEXT``, for ``ctr images import``."""
    build(docker, make_context(docker, folder), NAME)
    words = ["build", "--network=none", *ULIMITS, f"--tag={NEXT}", "-"]
    docker.docker(*words, input=_NEXT_DOCKERFILE)
    file = folder / "images.tar"
    docker.docker("save", f"--output={file}", NAME, NEXT)
    return file
