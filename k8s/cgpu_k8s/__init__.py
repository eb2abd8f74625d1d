"""Kubernetes: which pod gets which share of which GPU, and how its node learns it."""
