"""Simulated and real drivers, and a container's base directory without a container."""
