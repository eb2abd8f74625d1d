"""Enough of a kubelet to make containerd's CRI plugin create a pod with a container.

Messages of the interface are fields by number, here as ``{number: value}``: a string, a whole
number, a message, or a list of them. The numbers are those of Kubernetes' ``runtime.v1``.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from lab.containers.enclosure import wait_until
from lab.containers.engines import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lab.containers.engines import Docker, Volume
    from lab.machine.installed import Installed

_VARINT, _BYTES = 0, 2
_NODE_NETWORK, _OWN_PROCESSES = 2, 1
Message = dict[int, Any]
CONTAINERD = "/etc/containerd/config.toml"
IMAGE = "docker.io/library/pod:latest"
CHANGES = ("--change", f"ENV PATH={PATH}", "--change", 'CMD ["sleep", "100000"]')
_CONFIGURATION = """# as a node of Kubernetes has it
version = 2
root = "{base}/root"
state = "/run/cri" # gone after a reboot

[grpc]
  address = "{base}/socket"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pod:latest"
  restrict_oom_score_adj = true # tests may lack the right to lower it
  disable_apparmor = true
  {more}

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def configure(installed: Installed, *words: str) -> Path:
    """Make the configuration of a node's containerd, with what ``cgpu`` with ``words`` adds.

    Returns the folder of its files; its socket there is ``socket``.
    """
    base = write_configuration(installed)
    installed.cgpu(*words)
    return base


def write_configuration(installed: Installed, *, enable_cdi: bool = False) -> Path:
    """Make the configuration of a containerd without cgpu, and return the folder of its files.

    Args:
        installed: the machine.
        enable_cdi: whether containers get CDI devices; only from containerd 1.7 on.
    """
    base = installed.base / "cri"
    base.mkdir()
    more = "enable_cdi = true" if enable_cdi else ""
    installed.write(CONTAINERD, _CONFIGURATION.format(base=base, more=more))
    return base


def save(docker: Docker, container: str, image: Path) -> None:
    """Make a file with ``IMAGE`` of a container's files; what starts from it sleeps."""
    docker.docker("commit", *CHANGES, container, "pod")
    docker.docker("save", "--output", image, "pod")


@contextmanager
def served(installed: Installed, docker: Docker, *words: str) -> Iterator[Cri]:
    """containerd with what ``cgpu`` with ``words`` makes of its configuration."""
    inside, base = installed.enclosure, configure(installed, *words)
    image = base / "image.tar"
    container = docker.docker("create", "debian", "true").stdout.strip()
    save(docker, container, image)
    with (base / "log").open("w") as log:
        daemon = inside.start("containerd", "--log-level=warn", stdout=log, stderr=log)
    ctr = ["ctr", "--address", base / "socket", "--namespace", "k8s.io"]
    wait_until(lambda: inside.run(*ctr, "version", check=False).returncode == 0, "it answers")
    inside.run(*ctr, "images", "import", image)
    yield Cri(str(base / "socket"), inside.cgroup)
    daemon.terminate()
    daemon.wait(30)


def _number(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _number(rest) if rest else bytes([low])


def packed(message: Message) -> bytes:
    """The message in protobuf's encoding."""
    out = b""
    for number, value in message.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int):
                out += _number(number << 3 | _VARINT) + _number(each)
            else:
                data = packed(each) if isinstance(each, dict) else each.encode()
                out += _number(number << 3 | _BYTES) + _number(len(data)) + data
    return out


def unpacked(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message; of a repeated field, the last."""
    fields: dict[int, int | bytes] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key, value = number(), number()
        if key & 7 == _VARINT:
            fields[key >> 3] = value
        else:
            fields[key >> 3], at = data[at : at + value], at + value
    return fields


class Pod(NamedTuple):
    """A pod: its id, and what it was made from."""

    id: str
    config: Message


class Cri:
    """The CRI plugin at a socket, as a kubelet uses it."""

    def __init__(self, socket: str, cgroup: str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._cgroup = cgroup

    def call(self, method: str, request: Message) -> dict[int, int | bytes]:
        """What a method answers; grpc.RpcError says why it does not."""
        function = self._channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        return unpacked(function(packed(request), timeout=60))

    def run(
        self,
        image: str,
        *command: str,
        handler: str,
        env: Mapping[str, str],
        volumes: Sequence[Volume] = (),
    ) -> str:
        """What ``command`` prints in a container of a pod with a runtime handler."""
        with self.pod(handler) as pod:
            container = self.create(pod, "main", image, env, volumes)
            return self.exec(container, *command)

    def create(
        self,
        pod: Pod,
        name: str,
        image: str,
        env: Mapping[str, str],
        volumes: Sequence[Volume] = (),
    ) -> str:
        """The id of a container that a pod has from now on; it sleeps."""
        config = {
            1: {1: name},
            2: {1: image},
            3: ["sleep", "1000"],
            6: [{1: key, 2: value} for key, value in env.items()],
            7: [{1: v.container, 2: str(v.host), 3: 1} for v in volumes],
            15: {2: {3: {1: _NODE_NETWORK, 2: _OWN_PROCESSES}}},
        }
        made = self.call("CreateContainer", {1: pod.id, 2: config, 3: pod.config})
        container = self._text(made, 1)
        self.call("StartContainer", {1: container})
        return container

    def exec(self, container: str, *command: str) -> str:
        """What ``command`` prints in a container."""
        return self._text(self.call("ExecSync", {1: container, 2: list(command), 3: 60}), 1)

    @contextmanager
    def pod(
        self, handler: str, annotations: Mapping[str, str] | None = None, uid: str = ""
    ) -> Iterator[Pod]:
        """A pod with a runtime handler, empty for the default."""
        name = f"p{uuid.uuid4().hex[:8]}"
        linux = {1: f"/{self._cgroup}/{name}", 2: {1: {1: _NODE_NETWORK}}}
        own = [{1: key, 2: value} for key, value in (annotations or {}).items()]
        config: Message = {1: {1: name, 2: uid or name, 3: "default"}, 7: own, 8: linux}
        pod_id = self._text(self.call("RunPodSandbox", {1: config, 2: handler}), 1)
        try:
            yield Pod(pod_id, config)
        finally:
            self.call("StopPodSandbox", {1: pod_id})
            self.call("RemovePodSandbox", {1: pod_id})

    @staticmethod
    def _text(message: dict[int, int | bytes], number: int) -> str:
        value = message[number]
        assert isinstance(value, bytes)
        return value.decode()
