"""The examples of the manual pages; a test has the programs' own parsers read each of them."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """What it is for, and its commands: one a line, or several lines joined by backslashes."""

    what: str
    commands: str


def of_page(name: str) -> list[Example]:
    """Return the examples of a page, by its file's name."""
    return [Example(*each.removeprefix("# ").split("\n", 1)) for each in _TEXT[name].split("\n\n")]


_TEXT = {
    "cgpu.7": r"""# 6 of the 15 GiB of each GPU, under docker; podman takes the same options:
docker run --runtime=cgpu \
    -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 \
    IMAGE nvidia-smi

# 3 GiB of GPU 0 and 1 GiB of GPU 1:
docker run --runtime=cgpu \
    -e ALIYUN_COM_GPU_MEM_CONTAINER=3,1 -e ALIYUN_COM_GPU_MEM_DEV=15 \
    -e ALIYUN_COM_GPU_VISIBLE_DEVICES=0,1 IMAGE nvidia-smi

# Four times the GPU's time of a container of weight 1, while both have work (policies 2, 3, 6):
docker run --runtime=cgpu \
    -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 \
    -e ALIYUN_COM_GPU_SCHD_WEIGHT=4 IMAGE python3 train.py

# A service whose kernels go before those of all other containers:
docker run --runtime=cgpu \
    -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 \
    -e ALIYUN_COM_GPU_HIGH_PRIO=1 IMAGE python3 serve.py

# A container without limits, on a node where all others get the cap default_memsize:
docker run --runtime=cgpu -e CGPU_DISABLE=true IMAGE nvidia-smi

# A program with a share, without a container and without root:
cgpu-run --mem 6GiB --weight 2 -- python3 train.py

# Who uses what, once; then live:
cgpu-smi
cgpu top

# A new weight and a new cap for a running container, by its name:
cgpu set web weight=4 memsize=8GiB

# Fixed parts of GPU 0, a tenth for each unit of weight; what is not used stays idle:
cgpu set 0 policy=fixed max_inst=10

# What is wrong on this node, and what to do about it:
cgpu doctor""",
    "cgpu.1": r"""# What would change on this machine, as a diff; then the change:
cgpu install --dry-run
cgpu install --now

# What cgpu would do to a container:
cgpu plan /path/to/config.json

# Rules, caps and shares; then which processes hold a container's memory:
cgpu get
cgpu get 0/web/meminfo

# 2 GiB for every container that names no share:
cgpu set node default_memsize=2GiB

# The doctor's findings, for a program:
cgpu doctor --json""",
    "cgpu-run.1": r"""# 6 GiB of each GPU:
cgpu-run --mem 6GiB -- python3 train.py

# 40 % of GPU 1, with weight 2:
cgpu-run --mem 40% --gpus 1 --weight 2 -- python3 train.py

# On a simulated GPU, which python -m cgpu_sim /tmp/t4 has made:
cgpu-run --driver-dir /tmp/t4 --mem 6/15 -- ./program""",
    "cgpu-smi.1": r"""# The table, every 5 seconds:
cgpu-smi -l

# Fields of the containers on GPU 0, for a script:
cgpu-smi -i 0 --query-containers=name,memory.used,memory.cap \
    --format=csv,noheader

# Everything, for a program:
cgpu-smi --json""",
    "cgpud.8": r"""# In the foreground, with metrics, replacing the running server:
cgpud --replace --metrics 127.0.0.1:9477

# For a simulated node, separate from this machine's own:
cgpud --state-dir /tmp/node --driver-dir /tmp/t4""",
    "cgpu-runtime.8": r"""# A bundle, with crun:
cgpu-runtime --cgpu-runtime /usr/bin/crun run NAME

# On a simulated node:
cgpu-runtime --cgpu-state-dir /tmp/node --cgpu-driver-dir /tmp/t4 run NAME""",
}
