"""What programs that tests start import: calls of the driver by ctypes."""
