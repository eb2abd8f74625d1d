"""The output of ``cgpu-smi`` and ``cgpu top``."""
