"""The names that users, nodes and tools of this ecosystem write into Kubernetes' objects."""

from __future__ import annotations

# Resources, as nodes publish and containers ask for them.
MEMORY = "aliyun.com/gpu-mem"  # GiB
CORES = "aliyun.com/gpu-core.percentage"  # hundredths of a GPU's time
WHOLE_GPU = "aliyun.com/gpu"  # GPUs that nobody shares
COUNT = "aliyun.com/gpu-count"  # GPUs; of a pod, as a label: over how many its share is divided
ASKED = f"{MEMORY} or {WHOLE_GPU}"  # what a pod of ours asks for
OTHERS_GPU = "nvidia.com/gpu"  # whole GPUs, published by NVIDIA's device plugin

# Labels of a node that its administrator sets.
SCHEDULE = "ack.node.gpu.schedule"
PLACEMENT = "ack.node.gpu.placement"
NO_ISOLATION = "cgpu.disable.isolation"

# Labels of a node that the agent sets.
GPU_NAME = "aliyun.accelerator/nvidia_name"
GPU_MEMORY = "aliyun.accelerator/nvidia_mem"
GPU_COUNT = "aliyun.accelerator/nvidia_count"
NODE_LABELS = (GPU_NAME, GPU_MEMORY, GPU_COUNT)

# Resources that the agent writes into a node's status; a device plugin publishes COUNT.
NODE_RESOURCES = (MEMORY, CORES, WHOLE_GPU)

# Annotation of a node: its GPUs, by UUID.
FACTS = "cgpu/gpus"

# Annotations of a pod. Ours is the one that nodes follow, by container and UUID.
ALLOCATION = "cgpu/allocation"
RESERVATION = "cgpu/reservation"  # of a pod whose group has room, before its binding
# Two generations of published tools read these, by container's and GPU's index.
FRAMEWORK_ALLOCATION = "scheduler.framework.gpushare.allocation"
FRAMEWORK_ASSIGNED = "scheduler.framework.gpushare.assigned"
FRAMEWORK_ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_PERCENTAGE = "gpushare.alibabacloud.com/core-percentage"
MEM_IDX = "ALIYUN_COM_GPU_MEM_IDX"
MEM_DEV = "ALIYUN_COM_GPU_MEM_DEV"
MEM_POD = "ALIYUN_COM_GPU_MEM_POD"
MEM_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
MEM_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
GPU_VISIBLE = "topology.kubernetes.io/gpu-visible"  # of whole GPUs: their indices
GPU_GROUP = "topology.kubernetes.io/gpu-group"  # the pod's group

# Annotations of a pod that a ResourcePolicy counts: what its deletion costs, and that this is ours;
# the time of the last change that makes its scheduler try again.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
OWN_COST = "cgpu/deletion-cost"
RETRY = "cgpu/retry"
VIRTUAL_TAINT = "virtual-kubelet.io/provider"  # of virtual nodes

# Dynamic Resource Allocation: our driver, and what its devices offer by the names that claims have.
DRIVER = "gpu.cgpu"
CLAIM_MEMORY, CLAIM_CORES, CLAIM_SLOTS = "memory", "cores", "slots"
CLAIM_TAINT = f"{DRIVER}/unhealthy"  # of the device of a GPU that does not answer
NVIDIA_DRIVER = "gpu.nvidia.com"  # NVIDIA's driver, whose attributes ours have too

# Schedulers that have the extender.
SCHEDULERS = ("cgpu-scheduler", "ack-co-scheduler")
# The scheduler names of a pod that chooses none; the API server fills in the second.
UNCHOSEN = ("", "default-scheduler")
