"""The scheduler's extender: which nodes have room for a pod, and the binding that says so."""
