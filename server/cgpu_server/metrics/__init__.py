"""The metrics for Prometheus."""
