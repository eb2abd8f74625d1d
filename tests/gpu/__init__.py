"""``make gpu-check``: facts, limits and overhead on a machine with an NVIDIA GPU.

What runs in child processes (``child`` and the checks) needs the standard library only.
"""
