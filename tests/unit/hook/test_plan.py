"""The planner: what cgpu does to a container, decided without touching anything."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env import CgpuError, EnvError, parse_environment
from cgpu_env.request import Asked, parse_variables, resolve_request
from cgpu_hook.modifiers import add_devices, add_libraries, add_share
from cgpu_hook.plan import Draft, HostFiles, Mount, Plan, Setting
from cgpu_node.facts.node import DeviceNode, Node, NodeGpu
from cgpu_node.settings.config import Config

if TYPE_CHECKING:
    from cgpu_node.image.rootfs import RootfsView

pytestmark = pytest.mark.unit

MIB = 1 << 20
DEBIAN = "/usr/lib/x86_64-linux-gnu"
CUDA, NVML, JIT = "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"
SIX = ["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"]
DEV = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
HOST_FILES = HostFiles(
    "abc",
    "/run/cgpu",
    {CUDA: f"/opt/cgpu/{CUDA}", NVML: f"/opt/cgpu/{NVML}"},
    {"/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi"},
    "/opt/cgpu/cgpu-hook",
)


class Image:
    """A root file system from a table: path -> text of a file, ``-> target``, or ``/``.

    ``host`` is the same for the machine.
    """

    is_complete = False

    def __init__(self, entries: dict[str, str], host: dict[str, str] | None = None) -> None:
        self.entries = dict(entries)
        self.host = host or {}
        for path in entries:
            parent = posixpath.dirname(path)
            while parent != "/":
                self.entries.setdefault(parent, "/")
                parent = posixpath.dirname(parent)

    def _reachable(self, path: str) -> bool:
        parent = posixpath.dirname(path)
        return parent == "/" or (self.entries.get(parent) == "/" and self._reachable(parent))

    def get_kind(self, path: str) -> str | None:
        if path not in self.entries or not self._reachable(path):
            return None
        kinds = {"/": "directory", "!": "other"}
        text = self.entries[path]
        return "link" if text.startswith("-> ") else kinds.get(text, "file")

    def list_names(self, path: str) -> list[str]:
        if path != "/" and self.get_kind(path) != "directory":
            return []
        return sorted(posixpath.basename(p) for p in self.entries if posixpath.dirname(p) == path)

    def list_folders(self, path: str) -> list[str]:
        return [
            n
            for n in self.list_names(path)
            if self.get_kind(posixpath.join(path, n)) == "directory"
        ]

    def read_link(self, path: str) -> str:
        return self.entries[path][3:] if self.get_kind(path) == "link" else ""

    def read(self, path: str, most: int) -> bytes | None:
        return self.entries[path].encode()[:most] if self.get_kind(path) == "file" else None

    def read_part(self, path: str, start: int, most: int) -> bytes:
        return (self.read(path, start + most) or b"")[start:]

    def on_host(self, source: str) -> Image:
        below = {p[len(source) :]: t for p, t in self.host.items() if p.startswith(f"{source}/")}
        return Image(below)


def gpu(index: int) -> NodeGpu:
    uuid = f"GPU-{index}0000000-0000-4000-8000-000000000000"
    nodes = (DeviceNode(f"/dev/nvidia{index}", f"/dev/nvidia{index}"),)
    return NodeGpu(index, uuid, "T4", 15109 * MIB, 0, nodes)


NODE = Node(
    "535.1",
    "/usr/lib/drv",
    {CUDA: "/usr/lib/drv/libcuda.so.535.1", NVML: "/usr/lib/drv/libnvidia-ml.so.535.1"},
    {JIT: "/usr/lib/drv/jit.so.535.1"},
    (gpu(0), gpu(1)),
    (DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),),
)
DEBIAN_IMAGE = {f"{DEBIAN}/libc.so.6": "", "/usr/bin/env": "", "/lib": "-> usr/lib"}


def asked(config: dict[str, Any]) -> Asked:
    """What a container asks for that does ask for a share."""
    found = parse_variables(parse_environment(config["process"]["env"]), lambda: 0)
    assert found is not None
    return found


def plan_container(
    config: dict[str, Any], asked: Asked, node: Node, rootfs: RootfsView, host_files: HostFiles
) -> Plan:
    """The plan that the modifiers make of what a container's variables ask for."""
    draft = Draft(config, host_files.id, lambda: rootfs, Setting(), Config())
    draft.node, draft.host_files = node, host_files
    draft.request = resolve_request(asked, [gpu.as_gpu for gpu in node.gpus])
    for modifier in (add_share, add_libraries, add_devices):
        modifier(draft)
    return draft.plan


def decide(
    image: dict[str, str] = DEBIAN_IMAGE,
    env: list[str] = SIX,
    mounts: list[dict[str, Any]] | None = None,
    host: dict[str, str] | None = None,
    node: Node = NODE,
    **section: Any,
) -> Plan:
    config = {"process": {"env": env}, "mounts": [DEV, *(mounts or [])], **section}
    return plan_container(config, asked(config), node, Image(image, host), HOST_FILES)


def bind(destination: str, source: str = "/somewhere") -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": source}


def placed(result: Plan) -> dict[str, str]:
    return {mount.destination: mount.source for mount in result.mounts}


def test_cli_7_the_plan_of_a_container_without_a_request_is_empty() -> None:
    assert decide(env=[*SIX, "NVIDIA_VISIBLE_DEVICES=void"]) == Plan()
    assert Plan().as_json()["gpus"] == []


def test_cli_7_the_json_form_has_the_published_fields() -> None:
    form = decide(env=[*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1,0"]).as_json()
    assert form["gpus"][0] == {
        "index": 1,
        "uuid": "GPU-10000000-0000-4000-8000-000000000000",
        "cap_bytes": 6337173913,
        "memory_bytes": 6337173913,
    }
    assert [g["index"] for g in form["gpus"]] == [1, 0]
    assert form["weight"] == 1
    assert form["high_priority"] is False
    assert list(form) == ["gpus", "weight", "high_priority", "mounts", "hooks", "notes"]


def test_cli_7_device_nodes_and_masks_are_among_the_mounts_of_the_json_form() -> None:
    plan = Plan(devices=(DeviceNode("/dev/a", "/dev/nvidia0"),), masks=("/compat",))
    assert plan.as_json()["mounts"] == [
        {"source": "/dev/a", "destination": "/dev/nvidia0", "options": ("device",)},
        {"source": "/dev/null", "destination": "/compat", "options": ("mask",)},
    ]


def test_limits_are_read_only_and_the_ledger_is_not() -> None:
    mounts = {mount.destination: mount for mount in decide().mounts}
    assert mounts["/dev/cgpu/limits"] == Mount(
        "/run/cgpu/containers/abc/limits",
        "/dev/cgpu/limits",
        ("bind", "ro", "nosuid", "nodev", "noexec"),
    )
    assert "rw" in mounts["/dev/cgpu/ledger"].options
    for destination in ("/dev/cgpu/real/libcuda.so.1", f"{DEBIAN}/libcuda.so.1"):
        assert mounts[destination].options == ("bind", "ro", "nosuid", "nodev")


def test_alone_the_driver_is_put_where_debians_loader_looks() -> None:
    assert placed(decide()) == {
        "/dev/cgpu": "/run/cgpu/containers/abc",  # a tmpfs
        "/dev/cgpu/limits": "/run/cgpu/containers/abc/limits",
        "/dev/cgpu/ledger": "/run/cgpu/containers/abc/ledger",
        "/dev/cgpu/real/libcuda.so.1": "/usr/lib/drv/libcuda.so.535.1",
        "/dev/cgpu/real/libnvidia-ml.so.1": "/usr/lib/drv/libnvidia-ml.so.535.1",
        f"{DEBIAN}/libcuda.so.1": "/opt/cgpu/libcuda.so.1",
        f"{DEBIAN}/libcuda.so": "/opt/cgpu/libcuda.so.1",
        f"{DEBIAN}/libnvidia-ml.so.1": "/opt/cgpu/libnvidia-ml.so.1",
        f"{DEBIAN}/libnvidia-ml.so": "/opt/cgpu/libnvidia-ml.so.1",
        f"{DEBIAN}/{JIT}": "/usr/lib/drv/jit.so.535.1",
        f"{DEBIAN}/libnvidia-ptxjitcompiler.so": "/usr/lib/drv/jit.so.535.1",
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }


@pytest.mark.parametrize(
    ("image", "directories"),
    [
        ({"/usr/lib64/libc.so.6": "", "/usr/lib/x": "", "/lib64": "-> usr/lib64"}, ["/usr/lib64"]),
        ({"/usr/lib/libc.so.6": "", "/usr/lib64": "-> lib"}, ["/usr/lib"]),
        ({"/lib/x86_64-linux-gnu/libc.so.6": ""}, ["/lib/x86_64-linux-gnu"]),
        ({"/lib/x86_64-linux-gnu/libc.so.6": "", f"{DEBIAN}/x": ""}, [DEBIAN]),
        ({"/usr/lib/aarch64-linux-gnu/libc.so.6": ""}, ["/usr/lib/aarch64-linux-gnu"]),
        ({f"{DEBIAN}/libc.so.6": "-> libc-2.31.so"}, [DEBIAN]),
        ({f"{DEBIAN}/libc.so.6": "", "/usr/lib64/libc.so.6": ""}, [DEBIAN, "/usr/lib64"]),
        ({f"{DEBIAN}/libcuda.so.1": "", "/usr/lib64/libc.so.6": ""}, ["/usr/lib64"]),
        ({"/lib/libc.musl-x86_64.so.1": "", "/usr/lib/x": ""}, []),
        ({}, []),
    ],
)
def test_alone_the_libraries_go_where_the_images_own_glibc_is(
    image: dict[str, str], directories: list[str]
) -> None:
    found = [d for d in placed(decide(image)) if d.endswith("/libcuda.so.1")]
    assert found == ["/dev/cgpu/real/libcuda.so.1", *(f"{d}/libcuda.so.1" for d in directories)]


def test_a_directory_that_is_reached_through_a_link_is_not_used() -> None:
    image = {"/usr/lib": "-> /evil", "/evil/x86_64-linux-gnu/libc.so.6": ""}
    assert not [d for d in placed(decide(image)) if d.startswith("/usr/lib")]


def test_the_drivers_file_of_an_earlier_run_is_covered_with_its_versions() -> None:
    left = {f"{DEBIAN}/libcuda.so.1": "-> libcuda.so.470.1", f"{DEBIAN}/libcuda.so.470.1": "old"}
    covered = placed(decide({**DEBIAN_IMAGE, **left}))
    assert covered[f"{DEBIAN}/libcuda.so.470.1"] == "/opt/cgpu/libcuda.so.1"
    assert f"{DEBIAN}/libcuda.so.1" not in covered


@pytest.mark.parametrize("name", [CUDA, NVML, JIT])
@pytest.mark.parametrize(
    ("text", "is_covered"),
    [
        ("", True),
        ("a stub", True),
        (f"-> {CUDA}", False),
        (f"-> {DEBIAN}/{CUDA}", False),
        ("-> ../nowhere", False),
        ("/", False),
    ],
)
def test_rel_6_what_an_image_has_under_the_name_without_a_version_is_covered_or_kept(
    name: str, text: str, *, is_covered: bool
) -> None:
    short = f"{DEBIAN}/{name.removesuffix('.1')}"
    found = placed(decide({**DEBIAN_IMAGE, short: text}))
    assert found.get(short) == (found[f"{DEBIAN}/{name}"] if is_covered else None)


def test_a_library_named_by_the_drivers_version_has_no_name_without_it() -> None:
    name = "libnvidia-gpucomp.so.535.1"
    node = NODE._replace(companions={name: f"/usr/lib/drv/{name}"})
    config = {"process": {"env": SIX}, "mounts": [DEV]}
    found = placed(plan_container(config, asked(config), node, Image(DEBIAN_IMAGE), HOST_FILES))
    assert [path for path in found if "gpucomp" in path] == [f"{DEBIAN}/{name}"]


@pytest.mark.parametrize("name", [CUDA, NVML, JIT])
@pytest.mark.parametrize(
    "text", ["-> /etc/passwd", "-> ../../../etc/passwd", "-> libcuda.so.1", "-> missing", "!", "/"]
)
def test_rel_4_something_odd_where_a_library_belongs_is_refused(name: str, text: str) -> None:
    with pytest.raises(CgpuError, match=f"the image has .*{name}"):
        decide({**DEBIAN_IMAGE, f"{DEBIAN}/{name}": text})


def test_chained_the_vendors_libraries_are_covered_where_they_are() -> None:
    vendor = [bind("/usr/lib64/libcuda.so.535.1"), bind("/opt/x/libnvidia-ml.so.535.1")]
    result = placed(decide(mounts=vendor))
    assert result["/usr/lib64/libcuda.so.535.1"] == "/opt/cgpu/libcuda.so.1"
    assert result["/opt/x/libnvidia-ml.so.535.1"] == "/opt/cgpu/libnvidia-ml.so.1"
    assert f"{DEBIAN}/{CUDA}" not in result
    assert f"{DEBIAN}/{JIT}" not in result
    assert "/usr/bin/nvidia-smi" not in result


def test_chained_a_mount_is_recognised_where_the_images_links_lead_it() -> None:
    image = {**DEBIAN_IMAGE, "/opt/lib": "-> /data", "/data/z": ""}
    image["/usr/lib64/libcuda.so.535.1"] = "-> /opt/lib/innocent"
    result = placed(decide(image, mounts=[bind("/usr/lib64/libcuda.so.535.1")]))
    assert result["/data/innocent"] == "/opt/cgpu/libcuda.so.1"


def test_names_that_only_look_alike_are_left_alone() -> None:
    near = [bind(f"/x/{n}") for n in ("libcudart.so.12", "libcuda.so_not", "xlibcuda.so.1")]
    result = placed(decide(mounts=near))
    assert not [d for d in result if d.startswith("/x/")]
    assert f"{DEBIAN}/{CUDA}" in result


def test_opencl_is_masked() -> None:
    image = {**DEBIAN_IMAGE, f"{DEBIAN}/libnvidia-opencl.so.535.1": "x"}
    vendor = [bind("/usr/lib64/libnvidia-opencl.so.535.1"), bind("/usr/lib64/libcuda.so.535.1")]
    assert decide(image, mounts=vendor).masks == (
        "/usr/lib64/libnvidia-opencl.so.535.1",
        f"{DEBIAN}/libnvidia-opencl.so.535.1",
    )


def test_only_the_devices_of_granted_gpus_are_given() -> None:
    result = decide(env=[*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"])
    assert [node.host for node in result.devices] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert [node.host for node in result.withheld] == ["/dev/nvidia0"]


def test_rel_10_the_devices_of_a_lost_gpu_are_withheld() -> None:
    """REL-10: it may be back while the container runs, which has no cap on it."""
    result = decide(node=NODE._replace(gpus=(gpu(0)._replace(lost="GPU is lost"), gpu(1))))
    assert [share.index for share in result.gpus] == [1]
    assert [node.host for node in result.devices] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert [node.host for node in result.withheld] == ["/dev/nvidia0"]


def test_rel_3_a_poststop_hook_with_a_pinned_environment_gives_back() -> None:
    (hook,) = decide().hooks["poststop"]
    assert hook["path"] == "/opt/cgpu/cgpu-hook"
    assert hook["args"][-4:] == ["poststop", "--state-dir", "/run/cgpu", "abc"]
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


@pytest.mark.parametrize(
    "mount",
    [
        bind("/dev"),
        bind("/dev/"),
        bind("dev"),
        bind("/proc/../dev"),
        bind("/"),
        bind("/dev/cgpu"),
        bind("/dev/cgpu/limits"),
        bind("/dev/cgpu/real/libcuda.so.1"),
        bind("/link"),
        bind("/link/cgpu/limits"),
        {"destination": "/dev/cgpu", "type": "tmpfs"},
        {"destination": "/dev", "type": "devtmpfs", "source": "devtmpfs"},
    ],
)
def test_rel_4_a_mount_that_covers_our_place_is_refused(mount: dict[str, Any]) -> None:
    image = {**DEBIAN_IMAGE, "/link": "-> /dev"}
    with pytest.raises(CgpuError, match="covers /dev/cgpu"):
        decide(image, mounts=[mount])


@pytest.mark.parametrize("place", ["/usr", "/usr/lib", DEBIAN, "/lib/x86_64-linux-gnu"])
def test_rel_4_a_volume_over_the_library_directory_is_refused(place: str) -> None:
    with pytest.raises(CgpuError, match="where the driver's library has to be mounted"):
        decide(mounts=[bind(place)])


def test_rel_4_a_container_without_its_own_dev_is_refused() -> None:
    config: dict[str, Any] = {"process": {"env": SIX}, "mounts": []}
    with pytest.raises(CgpuError, match="no tmpfs is mounted at /dev"):
        plan_container(config, asked(config), NODE, Image(DEBIAN_IMAGE), HOST_FILES)


def test_other_mounts_do_no_harm() -> None:
    others = [bind("/dev/shm"), bind("/data"), bind("/dev/cgpu-sim/machine"), bind("/usr/share/x")]
    assert decide(mounts=others).gpus


def test_env_9_a_bad_request_is_refused_by_the_planner() -> None:
    with pytest.raises(EnvError, match="ALIYUN_COM_GPU_MEM_CONTAINER=abc"):
        decide(env=["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]])


def test_of_duplicate_variables_the_last_wins_as_in_runc() -> None:
    result = decide(env=["ALIYUN_COM_GPU_MEM_CONTAINER=abc", *SIX])
    assert result.gpus[0].cap_bytes == 6337173913


def test_the_configuration_is_not_changed_by_planning() -> None:
    config = {"process": {"env": SIX}, "mounts": [DEV]}
    plan_container(config, asked(config), NODE, Image(DEBIAN_IMAGE), HOST_FILES)
    assert config == {"process": {"env": SIX}, "mounts": [DEV]}
