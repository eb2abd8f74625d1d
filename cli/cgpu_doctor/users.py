"""What users of this machine meet: other accounts of shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_doctor.finding import Finding
from cgpu_node import accounts as apart
from cgpu_node.facts.node import driver_folder
from cgpu_node.settings.config import CONFIG_PATH, load_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_doctor.finding import Ground


def accounts(ground: Ground) -> Iterator[Finding]:
    """No other account promises the same GPUs."""
    config = load_config(ground.machine.at(CONFIG_PATH))
    found = apart.others(ground.state_dir, driver_folder(ground.driver_dir, config))
    if found:
        what, mend = apart.sentence(found), "cgpu install systemd --now"
        yield Finding("warning", what, found[0].state_dir, mend)
    else:
        yield Finding("ok", "no other account promises these GPUs")
