"""Clusters for tests: a fake API server with faults, and the real Kubernetes, of two versions."""
