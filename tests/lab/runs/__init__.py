"""What every run of pytest does: hung processes end, the slowest files are listed."""
