"""Names of resources, labels, annotations, drivers and schedulers in Kubernetes' objects."""

from __future__ import annotations

# Resources that nodes offer and containers ask for.
MEMORY = "aliyun.com/gpu-mem"  # GiB
CORES = "aliyun.com/gpu-core.percentage"  # percent of a GPU's time
WHOLE_GPU = "aliyun.com/gpu"  # GPUs that nobody shares
COUNT = "aliyun.com/gpu-count"  # GPUs; as a pod's label, the number of GPUs that its share is on
ASKED = f"{MEMORY} or {WHOLE_GPU}"  # what pods ask for, in messages
OTHERS_GPU = "nvidia.com/gpu"  # whole GPUs, published by NVIDIA's device plugin

# Labels of a node that its administrator sets.
SCHEDULE = "ack.node.gpu.schedule"
PLACEMENT = "ack.node.gpu.placement"

# Labels of a node that the agent sets.
GPU_NAME = "aliyun.accelerator/nvidia_name"
GPU_MEMORY = "aliyun.accelerator/nvidia_mem"
GPU_COUNT = "aliyun.accelerator/nvidia_count"
NODE_LABELS = (GPU_NAME, GPU_MEMORY, GPU_COUNT)

# Resources that the agent writes into a node's status; a device plugin publishes COUNT.
NODE_RESOURCES = (MEMORY, CORES, WHOLE_GPU)

# Annotation of a node: its GPUs, by UUID.
FACTS = "cgpu/gpus"

# Annotations of a pod. Nodes follow the allocation, which names containers, and GPUs by UUID.
ALLOCATION = "cgpu/allocation"
RESERVATION = "cgpu/reservation"  # what is reserved for a pod of a group before its binding
# Two generations of published tools read these, which name containers and GPUs by index.
FRAMEWORK_ALLOCATION = "scheduler.framework.gpushare.allocation"
FRAMEWORK_ASSIGNED = "scheduler.framework.gpushare.assigned"
FRAMEWORK_ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_PERCENTAGE = "gpushare.alibabacloud.com/core-percentage"
MEM_IDX = "ALIYUN_COM_GPU_MEM_IDX"
MEM_DEV = "ALIYUN_COM_GPU_MEM_DEV"
MEM_POD = "ALIYUN_COM_GPU_MEM_POD"
MEM_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
MEM_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
GPU_VISIBLE = "topology.kubernetes.io/gpu-visible"  # the indices of whole GPUs
GPU_GROUP = "topology.kubernetes.io/gpu-group"  # the pod's group

# Pod annotations that assign GPUs, for cgpu or for the published tools. Only the scheduler may set
# them.
RESERVED = (
    ALLOCATION,
    FRAMEWORK_ALLOCATION,
    FRAMEWORK_ASSIGNED,
    FRAMEWORK_ASSUME_TIME,
    CORE_PERCENTAGE,
    MEM_IDX,
    MEM_DEV,
    MEM_POD,
    MEM_ASSIGNED,
    MEM_ASSUME_TIME,
    GPU_VISIBLE,
    GPU_GROUP,
    RESERVATION,
)
OWN_PREFIX = "cgpu/"  # of the names that cgpu gives to annotations

# Annotations of a pod that a ResourcePolicy counts.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
OWN_COST = "cgpu/deletion-cost"  # the deletion cost that cgpu wrote last
RETRY = "cgpu/retry"  # a time; writing it makes the scheduler try the pod again
VIRTUAL_TAINT = "virtual-kubelet.io/provider"  # the taint of virtual nodes
AGENT_LOCK = "agent.lock"  # in the state directory; a node's one agent holds it

# Dynamic Resource Allocation: cgpu's driver, and the capacities of its devices.
DRIVER = "gpu.cgpu"
CLAIM_MEMORY, CLAIM_CORES, CLAIM_SLOTS = "memory", "cores", "slots"
CLAIM_TAINT = f"{DRIVER}/unhealthy"  # the taint of a device whose GPU does not answer
NVIDIA_DRIVER = "gpu.nvidia.com"  # NVIDIA's driver; cgpu's devices have its attributes too

# The schedulers that call the extender.
SCHEDULERS = ("cgpu-scheduler", "ack-co-scheduler")
# The values of schedulerName in a pod that chooses none; the API server sets the second.
UNCHOSEN = ("", "default-scheduler")
