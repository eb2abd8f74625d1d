"""Reads and writes cgpu's fields in Kubernetes' objects: pure."""
