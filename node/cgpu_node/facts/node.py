"""Facts about this node's driver and GPUs, kept so that no container start waits for the driver.

They are in ``<state>/node.json``, and are valid for one boot and for the driver files that they
came from. The first program that needs the file writes it: ``cgpu probe``, an installer, or a
container's creation.
"""

from __future__ import annotations

import os

from cgpu_env.devices import Gpu, GpuLostError
from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_node import jsontext
from cgpu_node.facts import driver
from cgpu_node.settings.config import CONFIG_PATH, Config, is_closed, load_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeVar

    Made_co = TypeVar("Made_co", covariant=True)

    class _Maker(Protocol[Made_co]):
        def __call__(self, *, refresh: bool) -> Made_co: ...


VERSION = 1
OLDEST_DRIVER = 418  # of CUDA 10.1
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class DeviceNode(NamedTuple):
    """A device file of the host, and its path in a container."""

    host: str
    container: str


class NodeGpu(NamedTuple):
    """A GPU.

    Attributes:
        index: its index, as the driver numbers GPUs.
        uuid: its UUID; empty if it was lost before anybody asked.
        name: the product's name; empty in the same case.
        total_bytes: its memory; 0 in the same case.
        context_bytes: the cost of a CUDA context; 0: not known.
        device_nodes: those of this GPU alone.
        lost: why it does not answer and, after a semicolon, what to do; empty if it answers.
        in_mig_mode: whether it is divided by MIG.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    name: str
    total_bytes: int
    context_bytes: int
    device_nodes: tuple[DeviceNode, ...]
    lost: str = ""
    in_mig_mode: bool = False

    @property
    def as_gpu(self) -> Gpu:
        """Return the GPU in the form that a request has."""
        return Gpu(self.index, self.uuid, self.total_bytes, self.lost)


class Node(NamedTuple):
    """A node: its driver's files, its GPUs and the administrator's configuration.

    Attributes:
        driver_version: as the driver reports it.
        driver_dir: where libcuda.so.1 and libnvidia-ml.so.1 are looked up.
        libraries: SONAME -> real file, for the two libraries that get a proxy.
        companions: SONAME -> real file, for the libraries that these two load by name.
        gpus: in the order of their indices, including those that are lost.
        device_nodes: those that every container with a GPU needs.
        config: the configuration.
        notes: what could not be found out, one sentence each.
        cuda_order: UUIDs of the GPUs as CUDA numbers them by default; empty: not known.
    """

    driver_version: str
    driver_dir: str
    libraries: dict[str, str]
    companions: dict[str, str]
    gpus: tuple[NodeGpu, ...]
    device_nodes: tuple[DeviceNode, ...]
    config: Config = Config()
    notes: tuple[str, ...] = ()
    cuda_order: tuple[str, ...] = ()

    @property
    def lost_gpus(self) -> tuple[NodeGpu, ...]:
        """Return the GPUs that do not answer."""
        return tuple(gpu for gpu in self.gpus if gpu.lost)


def load_node(
    state_dir: str,
    driver_dir: str | None = None,
    *,
    config: Config | None = None,
    refresh: bool = False,
    keep: bool = True,
) -> Node:
    """Return the facts about this node, from ``node.json`` if that is valid.

    Args:
        state_dir: the state directory; it has to exist (``paths.open_state``) if facts are kept.
        driver_dir: directory of the driver's libraries; None: as configured; if it is not, it is
            searched.
        config: the configuration; None: it is read.
        refresh: whether to ask the driver again, even if ``node.json`` is valid.
        keep: whether to write facts that had to be asked for to ``node.json``.

    Raises:
        CgpuError: there is no driver, it does not answer or is too old, or the configuration is
            wrong.
    """
    config = load_config() if config is None else config
    folder = driver_folder(driver_dir, config)
    path = f"{state_dir}/node.json"
    identity = _read_identity(folder)
    facts = None if refresh else read_facts(path)
    if facts is None or facts["identity"] != identity:
        from cgpu_node.facts.discovery import ask_driver, discover_facts  # rare, and heavy

        facts = (
            discover_facts(state_dir, folder, identity, refresh=refresh)
            if keep
            else ask_driver(folder, identity, read_facts(path))
        )
    check_release(facts["driver_version"], folder)
    return _parse_node(facts, config)


def refresh_if_lost(build: _Maker[Made_co]) -> Made_co:
    """Call ``build`` with the known facts and, if it raises GpuLostError, once more with new ones.

    Args:
        build: its argument ``refresh`` says whether to ask the driver again.

    Raises:
        GpuLostError: the GPU is still lost.
    """
    try:
        return build(refresh=False)
    except GpuLostError:
        return build(refresh=True)


def check_release(version: str, folder: str) -> None:
    """Refuse a driver older than any that the proxies know: it may have calls that nobody counts.

    Raises:
        CgpuError: it is older.
    """
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < OLDEST_DRIVER:
        raise CgpuError(
            f"driver {printable(version)} in {folder}: expected {OLDEST_DRIVER} (CUDA 10.1) or"
            " later",
            hint="install a newer driver",
        )


def driver_folder(driver_dir: str | None, config: Config) -> str:
    """Return the absolute path of the driver's libraries: the given, configured or found one.

    Raises:
        CgpuError: none is given or configured, and none is found.
    """
    given = driver_dir or config.library_dir
    if given:
        return os.path.abspath(given)
    try:
        return driver.find_driver_dir()
    except CgpuError as error:
        if not is_closed():
            raise
        what = f"{CONFIG_PATH}, which may name its directory, is not readable by you"
        hint = f"as root: chmod a+rx {os.path.dirname(CONFIG_PATH)}"
        raise CgpuError(f"{error}; {what}", hint=hint) from None


def _read_identity(folder: str) -> dict[str, Any]:
    """Return the boot and driver files for which facts are valid.

    A job of Slurm may be allowed only some of the GPUs, and the driver shows it no others.
    """
    with open(BOOT_ID) as file:
        boot = file.read().strip()
    files = {name: _stat_file(f"{folder}/{name}") for name in (*driver.PROXIED, "driver.json")}
    for name in driver.PROXIED:
        if files[name] is None:
            raise driver.make_missing_error(folder, name)
    identity = {"version": VERSION, "boot": boot, "driver_dir": folder, "files": files}
    withheld = driver.list_withheld_nodes(folder, is_simulated=files["driver.json"] is not None)
    return {**identity, "withheld": withheld} if withheld else identity


def _stat_file(path: str) -> list[int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns]


def read_facts(path: str) -> dict[str, Any] | None:
    """Return the facts at ``path``; None if they are missing, damaged or incomplete.

    Facts of earlier releases are incomplete: they lack CUDA's order, and without it numbers may
    mean other GPUs.
    """
    try:
        with open(path, "rb") as file:
            facts = jsontext.loads(file.read().decode())
        is_ours = facts["identity"]["version"] == VERSION and "cuda_order" in facts
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return facts if is_ours else None


def _device_nodes(pairs: list[list[str]]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(*pair) for pair in pairs)


def _parse_gpu(fields: dict[str, Any]) -> NodeGpu:
    return NodeGpu(
        index=fields["index"],
        uuid=fields["uuid"],
        name=fields["name"],
        total_bytes=fields["memory_bytes"],
        context_bytes=fields["context_bytes"],
        device_nodes=_device_nodes(fields["device_nodes"]),
        lost=fields.get("lost", ""),
        in_mig_mode=fields.get("mig", False),
    )


def _parse_node(facts: dict[str, Any], config: Config) -> Node:
    # Lost GPUs are in a list of their own, so that releases that do not know of it find the others.
    gpus = [_parse_gpu(fields) for fields in (*facts["gpus"], *facts.get("lost", ()))]
    return Node(
        driver_version=facts["driver_version"],
        driver_dir=facts["identity"]["driver_dir"],
        libraries=facts["libraries"],
        companions=facts["companions"],
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        device_nodes=_device_nodes(facts["device_nodes"]),
        config=config,
        notes=tuple(facts["notes"]),
        cuda_order=tuple(facts["cuda_order"]),
    )
