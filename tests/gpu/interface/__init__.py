"""The driver and NVML by ctypes, and C programs on the driver without a runtime."""
