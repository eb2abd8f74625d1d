"""Benchmarks: what cgpu adds, as differences and ratios within one run."""
