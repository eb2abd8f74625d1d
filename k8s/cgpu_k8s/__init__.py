"""Kubernetes: it decides which pod gets which share of which GPU, and informs the pod's node."""
