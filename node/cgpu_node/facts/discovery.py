"""Finds out the facts about a node: runs the probe, with a time limit, and writes ``node.json``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cgpu_env.errors import CgpuError
from cgpu_node.facts import driver
from cgpu_node.facts.node import read_facts
from cgpu_node.lockfile import LockFile
from cgpu_node.paths import write_atomically

# Without the persistence daemon, a driver takes several seconds to initialise each GPU.
TIME_LIMIT_SECONDS = 120
_SOON_SECONDS = 5.0
# seconds to wait for another process, which may ask the driver twice
_PATIENCE = 3.0 * TIME_LIMIT_SECONDS
_PROBE = Path(__file__).with_name("probe.py")
_COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def discover_facts(
    state_dir: str, folder: str, identity: dict[str, Any], *, refresh: bool = False
) -> dict[str, Any]:
    """Ask the driver in ``folder`` and keep the answer as ``node.json``.

    If several processes do this at once, one asks, and the others read what it wrote.

    Raises:
        CgpuError: the driver does not answer, or the state directory cannot be written.
    """
    path = f"{state_dir}/node.json"
    lock = LockFile(f"{state_dir}/node.lock", f"state directory {state_dir}", patience=_PATIENCE)
    with lock:
        known = read_facts(path)
        if known is not None and known["identity"] == identity and not refresh:
            return known
        facts = ask_driver(folder, identity, known)
        try:
            write_atomically(path, json.dumps(facts, indent=1).encode())
        except OSError as error:
            raise lock.to_cgpu_error(error) from None
        return facts


def ask_driver(
    folder: str, identity: dict[str, Any], before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Ask the driver in ``folder`` and return its facts in the form of ``node.json``.

    Args:
        folder: the directory of the driver's libraries.
        identity: the driver and boot for which the facts are valid.
        before: earlier facts. If they are of the same boot, they describe lost GPUs. If they are of
            the same driver, they have the cost of a context.

    Raises:
        CgpuError: the driver does not answer, or we are root and others could change it.
    """
    driver.check_trust(folder)
    libraries = driver.find_libraries(folder)
    facts, error = _run_probe("facts", folder)
    if facts is None:
        what, _, hint = error.partition("; ")
        raise CgpuError(f"the NVIDIA driver in {folder} does not answer: {what}", hint=hint)
    known = _list_known_gpus(before, identity)
    notes: list[str] = []
    costs, order = {}, None
    if before is not None and _is_same_driver(before["identity"], identity):
        order = before["cuda_order"]
        costs = {gpu["uuid"]: gpu["context_bytes"] for gpu in known if gpu["context_bytes"]}
    # while a GPU is lost, the order is not known
    is_ordered = order or (order == [] and facts["lost"])
    if not is_ordered or not costs.keys() >= {gpu["uuid"] for gpu in facts["gpus"]}:
        contexts, notes = _probe_contexts(folder)
        costs |= contexts["costs"]
        order = contexts["order"] or order or []
    version = facts["driver_version"]
    manifest = _read_manifest(folder)
    gpus = []
    for gpu in facts["gpus"]:
        minor = gpu.pop("minor")
        gpu["context_bytes"] = costs.get(gpu["uuid"], 0)
        gpu["device_nodes"] = _gpu_nodes(folder, manifest, gpu["index"], minor)
        gpus.append(gpu)
    return {
        "identity": identity,
        "driver_version": version,
        "libraries": libraries,
        "companions": driver.find_companions(folder, version),
        "gpus": gpus,
        "cuda_order": order,
        "lost": [_describe_lost_gpu(gpu, known, gpus, folder, manifest) for gpu in facts["lost"]],
        "device_nodes": _common_nodes(folder, manifest),
        "notes": notes,
    }


def _is_same_driver(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two identities are of the same files and boot, which a pod may see elsewhere."""
    return {**one, "driver_dir": ""} == {**other, "driver_dir": ""}


def _probe_contexts(folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return CUDA's facts about the GPUs, and a sentence for each fact that is unknown."""
    found, error = _run_probe("contexts", folder)
    unknown = "what a CUDA context costs {}is not known, so none is charged{}: {}"
    if found is None:
        return {"costs": {}, "order": []}, [unknown.format("", "", error)]
    failed = found["failed"].items()
    return found, [unknown.format(f"on {uuid} ", " there", why) for uuid, why in failed]


def _list_known_gpus(
    before: dict[str, Any] | None, identity: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the GPUs that earlier facts describe, if those are of this boot."""
    if before is None or before["identity"]["boot"] != identity["boot"]:
        return []
    return [*before["gpus"], *before.get("lost", ())]


def _describe_lost_gpu(
    gpu: dict[str, Any],
    known: list[dict[str, Any]],
    answering: list[dict[str, Any]],
    folder: str,
    manifest: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return a lost GPU with the facts that are known, or that the driver still reports.

    A GPU without a UUID is identified by its index, which does not change as long as the driver
    counts the GPU. If nothing was known of the GPU, it gets the device nodes that belong to no
    other GPU.
    """
    others = {each["uuid"] for each in answering}
    for each in known:
        same = each["uuid"] == gpu["uuid"] if gpu["uuid"] else each["index"] == gpu["index"]
        if same and each["uuid"] and each["uuid"] not in others:
            return {**each, **gpu, "uuid": each["uuid"]}
    unknown = {"name": "", "memory_bytes": 0, "context_bytes": 0}
    if manifest is not None:
        return {**unknown, **gpu, "device_nodes": _gpu_nodes(folder, manifest, gpu["index"], 0)}
    taken = [node for each in (*answering, *known) if each["uuid"] for node in each["device_nodes"]]
    there = ([str(path), str(path)] for path in sorted(Path("/dev").glob("nvidia[0-9]*")))
    return {**unknown, **gpu, "device_nodes": [node for node in there if node not in taken]}


def compute_modes(folder: str) -> dict[str, int]:
    """Return the compute mode of each GPU by UUID, as NVML numbers modes. It may change any time.

    Raises:
        CgpuError: the driver does not answer, or we are root and others could change it.
    """
    modes, error = _run_probe("modes", folder)
    if modes is None:
        raise CgpuError(f"the NVIDIA driver in {folder} does not answer: {error}")
    return modes


def read_attributes(folder: str) -> dict[str, dict[str, str]]:
    """Return what kind each GPU that answers is (``attributes.py``), by UUID.

    Raises:
        CgpuError: the driver does not answer, or we are root and others could change it.
    """
    found, error = _run_probe("attributes", folder)
    if found is None:
        raise CgpuError(f"the NVIDIA driver in {folder} does not answer: {error}")
    return {gpu.pop("uuid"): gpu for gpu in found["gpus"] if gpu.pop("index") is not None}


def read_holders(folder: str) -> dict[str, dict[int, int | None]]:
    """Return by GPU's UUID how many bytes each process holds, for a command that asks once.

    Empty if the driver in ``folder`` does not answer soon. None for a process whose bytes the
    driver does not report.
    """
    try:
        process = start_probe("holdings", folder, subprocess.PIPE)
    except (CgpuError, OSError):
        return {}
    try:
        out, _ = process.communicate(b"\n", timeout=_SOON_SECONDS)
        return {gpu["uuid"]: dict(gpu["holders"]) for gpu in json.loads(out)["gpus"]}
    except subprocess.TimeoutExpired:
        process.kill()
    except ValueError:
        pass  # the probe has failed
    return {}


def start_probe(question: str, folder: str, stdin: int) -> subprocess.Popen[bytes]:
    """Start the probe of the driver in ``folder``; ``stdin`` as for ``Popen``.

    Raises:
        CgpuError: we are root, and others could change what would be loaded; or a process holds a
            lease on it.
        OSError: the probe cannot be started.
    """
    folder = driver.check_trust(folder)
    held = driver.hold_libraries(folder)  # and the probe holds them as long as it runs
    command = [sys.executable, "-I", "-S", str(_PROBE), question, folder]
    # Fixed, so that neither a container's environment nor a user's can name another driver.
    environment = {"LD_LIBRARY_PATH": folder, "LC_ALL": "C"}
    try:
        return subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=held,
        )
    finally:
        driver.release_libraries(held)


def _run_probe(question: str, folder: str) -> tuple[dict[str, Any] | None, str]:
    """Run the probe and return its output, or None and the reason."""
    process = start_probe(question, folder, subprocess.DEVNULL)
    try:
        out, err = process.communicate(timeout=TIME_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a process stuck in the kernel does not die
        return None, f"no answer within {TIME_LIMIT_SECONDS} s"
    if process.returncode < 0:
        return None, f"it died by signal {-process.returncode}"
    if process.returncode > 0:
        lines = err.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {process.returncode}"
        unloaded = last.removeprefix("OSError: ")  # of a library, whose name the sentence has
        return None, last if unloaded == last else f"{unloaded}; {driver.REPAIR}"
    return json.loads(out), ""


def _read_manifest(folder: str) -> dict[str, Any] | None:
    """Return the device nodes that a folder's ``driver.json`` names; None: it has no such file."""
    path = Path(folder, "driver.json")
    if not path.exists():
        return None
    try:
        nodes: dict[str, Any] = json.loads(path.read_bytes())["device_nodes"]
        entries = [*nodes["common"], *(node for gpu in nodes["gpus"] for node in gpu)]
        good = all({"host", "container"} <= set(entry) for entry in entries)
    except (ValueError, TypeError, KeyError):
        good = False
    if not good:
        raise CgpuError(f"{path}: expected device_nodes with common and gpus")
    return nodes


def _pair_nodes(folder: str, entries: list[dict[str, str]]) -> list[list[str]]:
    return [[os.path.join(folder, entry["host"]), entry["container"]] for entry in entries]


def _common_nodes(folder: str, manifest: dict[str, Any] | None) -> list[list[str]]:
    if manifest is not None:
        return _pair_nodes(folder, manifest["common"])
    return [[node, node] for node in _COMMON_NODES if Path(node).exists()]


def _gpu_nodes(
    folder: str, manifest: dict[str, Any] | None, index: int, minor: int
) -> list[list[str]]:
    if manifest is None:
        return [[f"/dev/nvidia{minor}", f"/dev/nvidia{minor}"]]
    withheld = driver.list_withheld_nodes(folder, is_simulated=True)
    pairs = [_pair_nodes(folder, nodes) for nodes in manifest["gpus"]]
    counted = [each for each in pairs if not any(host in withheld for host, _ in each)]
    return counted[index] if index < len(counted) else []
