"""``cgpu probe``: ask the driver about this node."""

from __future__ import annotations

import argparse

from cgpu_cli.running import named_driver
from cgpu_env.devices import format_lost_gpu
from cgpu_env.values import MIB
from cgpu_node.facts.node import load_node
from cgpu_node.paths import open_state


class Probe:
    """Query the driver about this node again, keep the answer for later starts, and show it."""

    name = "probe"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add no arguments."""

    def run(self, given: argparse.Namespace) -> int:
        """Refresh ``node.json`` and print it for people."""
        state = open_state(given.state_dir)
        named_driver.check_conflict(state, given.driver_dir)
        node = load_node(state, given.driver_dir, refresh=True)
        print(f"driver {node.driver_version} in {node.driver_dir}")
        for soname, path in {**node.libraries, **node.companions}.items():
            print(f"  {soname} -> {path}")
        for gpu in node.gpus:
            if gpu.lost:
                print(format_lost_gpu(gpu.as_gpu))
                continue
            print(f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}")
            context = gpu.context_bytes / MIB
            print(f"  {gpu.total_bytes // MIB} MiB, {context:.1f} MiB for each CUDA context")
            for device in gpu.device_nodes:
                print(f"  {device.host}")
        for note in node.notes:
            print(f"note: {note}")
        print(f"kept in {state}/node.json")
        return 0
