"""Compares ledgers with the driver, and asks the driver how busy GPUs are."""
