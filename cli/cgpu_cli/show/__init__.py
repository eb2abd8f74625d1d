"""What ``cgpu-smi`` and ``cgpu top`` show."""
