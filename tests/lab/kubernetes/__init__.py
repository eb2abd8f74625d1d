"""Clusters for tests: a fake API server with faults, and the real Kubernetes 1.20.2."""
