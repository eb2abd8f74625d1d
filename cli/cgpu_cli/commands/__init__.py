"""The commands of ``cgpu``."""
