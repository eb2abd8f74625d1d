"""The commands: ``cgpu``, ``cgpu-run`` and ``cgpu-smi``."""
