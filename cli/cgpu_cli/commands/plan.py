"""``cgpu plan``: shows what cgpu would do to a container."""

from __future__ import annotations

import argparse

from cgpu_cli.answer import print_json
from cgpu_env.values import MIB
from cgpu_hook import preview
from cgpu_hook.plan import Plan

_OFF = (
    "cgpu is off for this container: ALIYUN_COM_GPU_MEM_CONTAINER asks for nothing,"
    " or CGPU_DISABLE or NVIDIA_VISIBLE_DEVICES switches it off"
)


class ShowPlan:
    """Show what cgpu would do to a container of this OCI configuration; changes nothing."""

    name = "plan"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the configuration and the option for output."""
        parser.add_argument("config", metavar="CONFIG.json", help="an OCI runtime configuration")
        parser.add_argument("--json", action="store_true", help="for programs; sizes in bytes")

    def run(self, given: argparse.Namespace) -> int:
        """Print the plan."""
        plan = preview.preview_plan(given.config, given.state_dir, given.driver_dir)
        if given.json:
            print_json(plan.as_json())
        else:
            print("\n".join(_format_plan(plan)))
        return 0


def _format_plan(plan: Plan) -> list[str]:
    notes = [f"note    {note}" for note in plan.notes]
    request = plan.request
    if request is None:
        return [_OFF, *notes]
    priority = ", high priority" if request.high_priority else ""
    return [
        *(f"GPU {g.index}  {g.uuid}  {g.cap_bytes // MIB} MiB" for g in request.gpus),
        f"weight {request.weight}{priority}",
        *notes,
        *(f"mount   {mount.destination}  <-  {mount.source}" for mount in plan.mounts),
        *(f"device  {device.container}  <-  {device.host}" for device in plan.devices),
        *(f"mask    {path}" for path in plan.masks),
        *(f"hook    {stage}: {h['path']}" for stage, hooks in plan.hooks.items() for h in hooks),
    ]
