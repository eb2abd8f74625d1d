"""The scheduler's extender: it finds nodes with room for a pod, chooses its GPUs and binds it."""
